"""Which of the invariants that are kept to a program speak of a process. Judges nothing else."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from traincheck.facts.programs import Sketch, file_of
from traincheck.schema.claims import Invariant, Needs
from traincheck.schema.findings import Violation
from traincheck.schema.words import counted, joined

SEES = Needs(states=frozenset({"parameter@new"}))


def kept_to_programs(invariants: Iterable[Invariant]) -> dict[str, tuple[str, ...]]:
    """The programs of each invariant that is kept to some, by its id."""
    found = ((one.id, one.precondition.programs()) for one in invariants)
    return {id_: programs for id_, programs in found if programs}


def others_note(
    programs: Mapping[str, tuple[str, ...]], asked: Iterable[str], here: Iterable[str], total: int
) -> str:
    """A sentence on the invariants that speak of other programs alone; empty when all were asked.

    Args:
        programs: of each invariant that is kept to some.
        asked: those that speak of what was run.
        here: file names of what was run.
        total: how many invariants there are.
    """
    left = {id_: names for id_, names in programs.items() if id_ not in set(asked)}
    if not left:
        return ""
    files, own = sorted({file_of(one) for some in left.values() for one in some}), sorted(here)
    speak = "speaks" if len(left) == 1 else "speak"
    told = f"{len(left):,} of {counted(total, 'invariant')} {speak} of"
    if set(files) <= set(own):
        return f"{told} another model in {joined(files)}: learn from a good run of this one too"
    run = joined(own) if own else "another program"
    return f"{told} {joined(files)} only, and this run is of {run}: learn from a good run of it too"


class Guard:
    """Learns what a process trains, and says whose violations are to be believed.

    By their file names alone many programs are one: train.py. That can only be told once the
    parameters are there, when the monitors are already at work. Where several of one file name are
    known, as the stages of a pipeline on their ranks, a process is the one that it is most like.
    """

    def __init__(self, programs: Mapping[str, tuple[str, ...]]) -> None:
        self._programs = programs
        self._of_file: dict[str, set[str]] = defaultdict(set)
        for program in {one for some in programs.values() for one in some}:
            self._of_file[file_of(program)].add(program)
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
            known = self._sketch.fits(programs, is_whole=self.is_whole)
            if known:
                known = any(map(self._is_closest, programs))
            self._known[key] = known
        return known

    def _is_closest(self, program: str) -> bool:
        mine = self._sketch.likeness(program)
        others = self._of_file[file_of(program)]
        return all(self._sketch.likeness(other) <= mine for other in others)

    triggered = 0

    def finish(self) -> tuple[()]:
        """Nothing is left to tell."""
        return ()

    def believed(self, violations: Iterable[Violation]) -> list[Violation]:
        """Those of checks that speak of this program."""
        return [violation for violation in violations if self.admits(violation.check_id)]
