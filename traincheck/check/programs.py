"""Which of the invariants that are kept to a program speak of a process. Judges nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from traincheck.relations._programs import Sketch
from traincheck.schema.claims import Invariant, Needs
from traincheck.schema.findings import Violation

SEES = Needs(states=frozenset({"parameter@new"}))


def kept_to_programs(invariants: Iterable[Invariant]) -> dict[str, tuple[str, ...]]:
    """The programs of each invariant that is kept to some, by its id."""
    found = ((one.id, one.precondition.programs()) for one in invariants)
    return {id_: programs for id_, programs in found if programs}


class Guard:
    """Learns what a process trains, and says whose violations are to be believed.

    By their file names alone many programs are one: train.py. That can only be told once the
    parameters are there, when the monitors are already at work.
    """

    def __init__(self, programs: Mapping[str, tuple[str, ...]]) -> None:
        self._programs = programs
        self._sketch = Sketch()
        self._known: dict[tuple[tuple[str, ...], int, bool], bool] = {}
        self.observe = self._sketch.observe
        self.is_whole = False  # all parameters are known

    def admits(self, check_id: str) -> bool:
        """Whether a check speaks of this program, as far as can be told."""
        programs = self._programs.get(check_id)
        if programs is None:
            return True
        key = (programs, self._sketch.size, self.is_whole)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._sketch.fits(programs, is_whole=self.is_whole)
        return known

    triggered = 0

    def finish(self) -> tuple[()]:
        """Nothing is left to tell."""
        return ()

    def believed(self, violations: Iterable[Violation]) -> list[Violation]:
        """Those of checks that speak of this program."""
        return [violation for violation in violations if self.admits(violation.check_id)]
