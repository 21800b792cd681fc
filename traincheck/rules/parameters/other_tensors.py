"""Optimizers that hold other tensors than the parameters that are trained: copies, other models."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from traincheck.readings.optimizers import Holder
from traincheck.readings.step_facts import Parameter, StepFacts
from traincheck.readings.training_state import TrainingState
from traincheck.rules.base.rule import Streak, extend
from traincheck.schema.torch_api import Families

_CERTAIN = 8  # steps


class Misheld:
    """Counts the steps in which optimizers had no gradient, or two updated the same parameters."""

    def __init__(self) -> None:
        self._dry: dict[str, Streak] = {}  # steps in a row without a gradient, by optimizer
        # Two optimizers, one of which holds all parameters of the other: times that both were fed
        self._shared: dict[frozenset[str], Streak] = {}
        self._fed: dict[str, frozenset[int]] = {}  # parameters of the optimizers that were ever fed
        # Which of the two was fed since then: each update of a loop may be a step
        self._turns: dict[frozenset[str], set[str]] = {}

    def clear(self) -> None:
        self._dry.clear()
        self._shared.clear()
        self._fed.clear()
        self._turns.clear()

    def follow(self, stepped: Sequence[Holder], facts: StepFacts) -> None:
        applied = frozenset[int]().union(*(moment.applied for moment in facts.updates()))
        for holder in stepped:
            if holder.ids.isdisjoint(applied) and holder.ids.isdisjoint(facts.reached):
                extend(self._dry, holder.event.id, facts.event.step)
            else:
                self._dry.pop(holder.event.id, None)
        fed = _fed(stepped, facts)
        for holder in stepped:
            if holder.event.id in fed:
                owner = holder.event.id
                ids = holder.ids
                self._fed[owner] = ids
                for other, theirs in self._fed.items():
                    if other != owner and (ids <= theirs or theirs <= ids):
                        pair = frozenset((owner, other))
                        turns = self._turns.setdefault(pair, {other})
                        turns.add(owner)
                        if len(turns) == len(pair):
                            extend(self._shared, pair, facts.event.step)
                            turns.clear()

    def is_dry(self, holder: Holder) -> bool:
        streak = self._dry.get(holder.event.id)
        return streak is not None and streak.count >= _CERTAIN

    def is_twin(self, holder: Holder) -> bool:
        """Whether another optimizer shares parameters with it while both get new gradients."""
        return any(streak.count >= _CERTAIN for streak in self._of(holder))

    def _of(self, holder: Holder) -> list[Streak]:
        return [streak for pair, streak in self._shared.items() if holder.event.id in pair]

    def instead_of(
        self, root: str, stepped: Sequence[Holder], facts: StepFacts, ledger: TrainingState
    ) -> list[Holder]:
        """Optimizers one of which was probably meant for the trained model that none holds."""
        if facts.event.modes.get(root) is False:
            return []
        shapes = _shapes(p for p in ledger.parameters.values() if p.root == root)
        return [
            holder
            for holder in stepped
            if self.is_twin(holder)
            or (
                self.is_dry(holder)
                and _shapes(ledger.parameters[i] for i in holder.ids if i in ledger.parameters)
                == shapes
            )
        ]

    def since(self, blamed: Sequence[Holder]) -> int | None:
        """The first step of a streak that became certain in this step."""
        streaks = [self._dry.get(holder.event.id) for holder in blamed]
        streaks += [streak for holder in blamed for streak in self._of(holder)]
        return next((s.first for s in streaks if s and s.count == _CERTAIN), None)


def _fed(stepped: Sequence[Holder], facts: StepFacts) -> set[str]:
    """Optimizers with gradients that arrived after the previous optimizer's step.

    An optimizer that calls another within its step has none: the inner step ends first.
    """
    holders = {holder.event.id: holder for holder in stepped}
    came: set[int] = set()
    fed: set[str] = set()
    for moment in facts.moments:
        came |= moment.reached
        if moment.family == Families.OPTIMIZER_STEP and moment.call.owner in holders:
            if not came.isdisjoint(moment.applied):
                fed.add(moment.call.owner)
            came.clear()
    return fed


def _shapes(parameters: Iterable[Parameter]) -> list[tuple[int, ...]]:
    return sorted(parameter.shape for parameter in parameters if parameter.requires_grad)


def are_masters(ledger: TrainingState, holder: Holder, root: str) -> bool:
    """Whether the tensors of an optimizer can be copies of all trained parameters of a model.

    There is one tensor per parameter, or flat tensors of the same total size (fp16 utilities).
    """
    books = ledger.loose | ledger.parameters
    theirs = [books[identity] for identity in holder.ids if identity in books]
    ours = [p for p in ledger.parameters.values() if p.root == root and p.requires_grad]
    if not theirs or not ours or len(theirs) > len(ours):
        return False
    if len(theirs) == len(ours):
        return sorted(p.shape for p in theirs) == sorted(p.shape for p in ours)
    is_flat = all(len(p.shape) == 1 for p in theirs)
    return is_flat and _size(theirs) == _size(ours)


def _size(parameters: Iterable[Parameter]) -> int:
    return sum(prod(parameter.shape) for parameter in parameters)
