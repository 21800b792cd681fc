"""Gradients that pile up where the program updates its parameters itself.

No call shows such an update: a parameter that has changed in a step, and had a gradient, was
updated. Two passes of a deliberate accumulation may have other writes between them, such as noise
that is added to weights. So more updates in a row are asked for than one accumulates over.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from traincheck.facts.step_facts import StepFacts
from traincheck.schema.events import CallEvent
from traincheck.schema.torch_api import Families

_SURE = 64  # updates in a row
_AT_END = 4  # where the run ends, and no gradient was ever cleared

_CLIPS = frozenset({Families.CLIP_NORM, Families.CLIP_VALUE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Pile:
    """A step that applies gradients which contain those of the step before.

    Attributes:
        facts: of the step.
        ids: parameters.
        backward: the last call that added to them.
    """

    facts: StepFacts
    ids: frozenset[int]
    backward: CallEvent


@dataclass(slots=True)
class Piling:
    """Follows gradients from one update by the program to the next."""

    _used: set[int] = field(default_factory=set)  # applied, and not cleared since
    _row: list[Pile] = field(default_factory=list)  # updates since gradients were last cleared
    _count: int = 0
    _longest: int = 0  # such row that a clearing ended
    _is_cleared: bool = False  # ever
    _was_clipped: bool = False  # in the step before

    def step(self, facts: StepFacts, held: AbstractSet[int]) -> list[Pile]:
        """What is certain after this step.

        held: parameters that optimizers hold: they may step only now and then.
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
        if not self._was_clipped:  # scaled by the program, as for momentum
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
        """The run is over: nothing clears these gradients any more."""
        is_certain = not self._is_cleared and _AT_END <= self._count < self._needed
        return self._row if is_certain else []
