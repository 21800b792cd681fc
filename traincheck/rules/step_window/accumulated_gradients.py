"""Gradients that accumulate when the program updates its parameters itself.

No call shows such an update: a parameter counts as updated if it had a gradient and changed in the
step. During deliberate accumulation, other writes may occur between two passes, e.g. noise added to
weights. The proof therefore needs more updates in a row than a program accumulates over.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from traincheck.readings.step_facts import StepFacts
from traincheck.schema.events import CallEvent
from traincheck.schema.torch_api import Families

_SURE = 64  # updates in a row
_AT_END = 4  # at the end of the run, if no gradient was ever cleared

_CLIPS = frozenset({Families.CLIP_NORM, Families.CLIP_VALUE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Pile:
    """A step that applies gradients which still contain those of the previous step.

    Attributes:
        facts: the facts of the step.
        ids: the parameters.
        backward: the last call that added to their gradients.
    """

    facts: StepFacts
    ids: frozenset[int]
    backward: CallEvent


@dataclass(slots=True)
class Piling:
    """Follows gradients from one update by the program to the next."""

    _used: set[int] = field(default_factory=set)  # gradients applied and not cleared since
    _row: list[Pile] = field(default_factory=list)  # updates since gradients were last cleared
    _count: int = 0
    _longest: int = 0  # longest such row that was ended by clearing
    _is_cleared: bool = False  # whether gradients were ever cleared
    _was_clipped: bool = False  # in the previous step

    def step(self, facts: StepFacts, held: AbstractSet[int]) -> list[Pile]:
        """The piles that are certain after this step.

        Args:
            facts: the facts of the step.
            held: parameters that optimizers hold, which may step only occasionally.
        """
        if facts.is_gap:
            self._used.clear()
            self._end_row()
            return []
        if not facts.is_complete:
            return []
        piled: set[int] = set()
        for moment in facts.moments:
            cleared = self._used & moment.cleared
            if cleared:
                self._is_cleared = True
                self._used -= cleared
                piled -= cleared
            if moment.family == Families.BACKWARD:
                piled |= self._used & moment.reached
        families = {moment.family for moment in facts.moments}
        if not self._was_clipped:  # the program scales gradients, e.g. for momentum
            piled -= facts.written
        self._was_clipped = not _CLIPS.isdisjoint(families)
        applied = facts.by_hand - held
        self._used |= applied
        return self._enter(facts, piled & applied) if applied else []

    def _enter(self, facts: StepFacts, piled: set[int]) -> list[Pile]:
        if not piled:
            self._end_row()
            return []
        calls = [m.call for m in facts.moments if m.family == Families.BACKWARD]
        found = Pile(facts=facts, ids=frozenset(piled), backward=calls[-1])
        self._count += 1
        needed = self._needed
        if self._count > needed:
            return [found]
        self._row = [*self._row[:1], found]
        return self._row if self._count == needed else []

    @property
    def _needed(self) -> int:
        return max(_SURE, 2 * self._longest)

    def _end_row(self) -> None:
        self._longest = max(self._longest, self._count)
        self._row, self._count = [], 0

    def finish(self) -> list[Pile]:
        """Report at the end of the run, when nothing can clear these gradients any more."""
        is_certain = not self._is_cleared and _AT_END <= self._count < self._needed
        return self._row if is_certain else []
