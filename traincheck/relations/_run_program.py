"""Which program a whole run is of, for relations that see all its processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from traincheck.facts.programs import Sketch, file_of
from traincheck.relations._names import ProgramName
from traincheck.schema.events import Event, StateEvent

SEEN = frozenset({"parameter@new"})  # what it takes to tell programs of one file name apart


class RunProgram:
    """The file name of what was started, and what all processes together train."""

    def __init__(self) -> None:
        self._name = ProgramName()
        self._sketch = Sketch()
        self._known: dict[tuple[str, int], bool] = {}

    @property
    def name(self) -> str | None:
        """What claims that are kept to this program are kept to; None until it is told."""
        return None if self._name.name is None else self._sketch.of(self._name.name)

    def observe(self, event: Event) -> None:
        """Take note of a start, or of a parameter."""
        if isinstance(event, StateEvent):
            if event.change == "new":
                self._sketch.observe(event)
        else:
            self._name.observe(event)

    def fits(self, params: Mapping[str, Any]) -> bool:
        """Whether a claim with these parameters speaks of this program."""
        program = params.get("program")
        if program is None:
            return True
        key = (program, self._sketch.size)
        known = self._known.get(key)
        if known is None:
            is_like = self._sketch.fits((program,), is_whole=False)
            known = self._known[key] = file_of(program) == self._name.name and is_like
        return known
