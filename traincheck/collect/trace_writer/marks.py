"""Observations as marks of the trace, and the mark of the end of a process."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from traincheck.collect.trace_writer.call_site import outside
from traincheck.collect.trace_writer.emitter import Emitter
from traincheck.schema.marks import Marks
from traincheck.schema.observations.base import Observation


def write(em: Emitter, observation: Observation) -> None:
    """Record an observation."""
    em.event("mark", {"text": observation.text, "data": observation.data()})


class ProcessEnd:
    """The exception that ends a process, if one does."""

    def __init__(self) -> None:
        self._data: dict[str, Any] = {}

    def note(self, kind: type[BaseException], traceback: TracebackType | None) -> None:
        """An exception reached the top of the program."""
        where = None
        while traceback is not None:
            where = outside(traceback.tb_frame) or where
            traceback = traceback.tb_next
        self._data = {"exception": kind.__name__, "where": where}

    def record(self, em: Emitter) -> None:
        """Write the mark of the end."""
        em.event("mark", {"text": Marks.ENDED, "data": self._data})
