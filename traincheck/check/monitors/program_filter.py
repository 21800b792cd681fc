"""Which invariants apply to a process, of those that are restricted to certain programs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from traincheck.readings.programs import Sketch, file_of, namesakes
from traincheck.schema.claims import Invariant, Needs
from traincheck.schema.findings import Violation
from traincheck.schema.words import counted, joined

NEEDS = Needs(states=frozenset({"parameter@new"}))


def programs_by_invariant(invariants: Iterable[Invariant]) -> dict[str, tuple[str, ...]]:
    """Id of each invariant that is restricted to programs -> these programs."""
    found = ((one.id, one.precondition.programs()) for one in invariants)
    return {id_: programs for id_, programs in found if programs}


def skipped_note(
    programs: Mapping[str, tuple[str, ...]], applied: Iterable[str], here: Iterable[str], total: int
) -> str:
    """A sentence on the invariants that apply only to other programs; empty if there are none.

    Args:
        programs: of each restricted invariant.
        applied: ids of those that apply to the programs of this run.
        here: file names of the programs of this run.
        total: number of all invariants.
    """
    skipped = {id_: names for id_, names in programs.items() if id_ not in set(applied)}
    if not skipped:
        return ""
    files = sorted({file_of(one) for names in skipped.values() for one in names})
    own = sorted(here)
    apply = "applies" if len(skipped) == 1 else "apply"
    share = f"{len(skipped):,} of {counted(total, 'invariant')} {apply} only to"
    if set(files) <= set(own):
        return (
            f"{share} another model in {joined(files)}: record a good run of this model to learn "
            "its invariants"
        )
    run = joined(own) if own else "another program"
    return (
        f"{share} {joined(files)}, but this run is {run}: record a good run of it to learn its "
        "invariants"
    )


def renamed_note(former: Iterable[str], here: Iterable[str]) -> str:
    """A sentence on the programs that the scripts of this run are, under other names."""
    own = joined(sorted(here)) or "this run"
    return (
        f"{own} is {joined(sorted(former))} under another name, as the model and most lines of the "
        "script are the same: the invariants of that program apply to this run"
    )


class ProgramFilter:
    """Identifies the program of a process, and filters violations by it.

    A file name such as train.py identifies many programs, so the parameters are compared as well.
    They are known only after the monitors have started. Where several programs of one file name
    are known, such as the stages of a pipeline, a process is the program that it is most like.

    If no known program has the file name of this one, the script may have been renamed. Then what
    is claimed of the programs with exactly the same parameters and mostly the same lines applies.
    If there are several, only what is claimed of all of them applies. The violations of the first
    step are held back until its end, when the parameters are known.

    Args:
        programs: id of an invariant that is restricted to programs -> these programs.
        program: file name of the script of this process.
        source: sketch of its lines; empty if not known.

    Attributes:
        observe: takes an event.
        is_complete: whether all parameters are known.
        is_renamed: whether the file name is that of no known program.
    """

    def __init__(
        self, programs: Mapping[str, tuple[str, ...]], program: str | None, source: str = ""
    ) -> None:
        self._programs = programs
        self._program = program
        self._of_file: dict[str, set[str]] = defaultdict(set)
        for one in {one for some in programs.values() for one in some}:
            self._of_file[file_of(one)].add(one)
        self._sketch = Sketch()
        self._sketch.source = source
        self._cache: dict[tuple[tuple[str, ...], int, bool], bool] = {}
        self._held: list[Violation] = []
        self._namesakes: dict[str, set[str]] = {}
        self.observe = self._sketch.observe
        self.is_complete = False
        self.is_renamed = bool(programs) and program not in self._of_file

    @property
    def former_files(self) -> list[str]:
        """File names of the known programs that this one is, under another name."""
        return sorted(self._namesakes)

    def end_step(self) -> None:
        """A step has ended: all parameters are known."""
        if self.is_complete:
            return
        self.is_complete = True
        self._sketch.end_first_step()
        if self.is_renamed:
            known = (program for some in self._of_file.values() for program in some)
            for found in namesakes(self._program, self._sketch, known):
                self._namesakes.setdefault(file_of(found), set()).add(found)

    def release(self) -> list[Violation]:
        """The violations that were held back, of checks that turned out to apply."""
        held, self._held = self._held, []
        return self.filter(held)

    def applies(self, check_id: str) -> bool:
        """Whether a check applies to this program, as far as is known."""
        programs = self._programs.get(check_id)
        if programs is None:
            return True
        if self.is_renamed:
            files = self._namesakes.values()
            return bool(files) and all(not same.isdisjoint(programs) for same in files)
        key = (programs, self._sketch.size, self.is_complete)
        known = self._cache.get(key)
        if known is None:
            known = self._sketch.fits(programs, is_whole=self.is_complete)
            if known:
                known = any(map(self._is_closest, programs))
            self._cache[key] = known
        return known

    def _is_closest(self, program: str) -> bool:
        likeness = self._sketch.likeness(program)
        others = self._of_file[file_of(program)]
        return all(self._sketch.likeness(other) <= likeness for other in others)

    triggered = 0

    def finish(self) -> tuple[()]:
        """No violation."""
        return ()

    def filter(self, violations: Iterable[Violation]) -> list[Violation]:
        """The violations of checks that apply to this program."""
        if self.is_renamed and not self.is_complete:
            violations = list(violations)
            self._held += [v for v in violations if v.check_id in self._programs]
        return [violation for violation in violations if self.applies(violation.check_id)]
