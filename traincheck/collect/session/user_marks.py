"""The marks that a program writes itself: ends of steps, and notes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from traincheck.collect import masking
from traincheck.collect.context import Recorder, watch_for_boundary
from traincheck.collect.trace_writer.guard import observe
from traincheck.schema.observations.registry import MARK_TEXTS


class UserMarks:
    """Writes the marks of the program in one recording."""

    def __init__(self, session: Recorder) -> None:
        self._session = session

    def mark_step(self) -> None:
        """End the current step. From the first such mark on, only these marks end steps."""
        steps = self._session.steps
        steps.catch_up()
        steps.manual = True
        if any(steps.counters.values()):
            steps.end()
            watch_for_boundary(self._session)

    def annotate(self, text: str, data: Mapping[str, Any]) -> None:
        """Write a note. Values that are not JSON are written as text."""
        observe(self._session, self._write, text, data)

    def _write(self, text: str, data: Mapping[str, Any]) -> None:
        em = self._session.local.em or self._session.emitter()
        options = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
        shown = f"user: {text}" if text in MARK_TEXTS else masking.message(str(text))
        fields = {"text": shown, "data": masking.noted(dict(data))}
        em.write_json("mark", orjson.dumps(fields, default=repr, option=options)[1:-1])
