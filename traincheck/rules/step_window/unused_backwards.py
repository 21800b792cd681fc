"""Backward passes that give nothing to the optimizer that steps next: did another use them?"""

from __future__ import annotations

from traincheck.facts.step_facts import Moment, StepFacts
from traincheck.rules.base.streak import Streak, extend
from traincheck.schema.torch_api import Families

_STEPS = frozenset({Families.OPTIMIZER_STEP, Families.SCALER_STEP})


class VainPasses:
    """Books only. A pass is in vain if what it computed is cleared before any optimizer steps it.

    streaks: of each optimizer, its steps in a row for which a pass was in vain.
    """

    def __init__(self) -> None:
        self.streaks: dict[str, Streak] = {}
        self._pending: dict[str, tuple[int | None, set[int]]] = {}  # not used yet, by optimizer
        self._spans: set[int] = set()  # of passes since any optimizer stepped
        self._reached: set[int] = set()  # by these

    def forget(self, owner: str) -> None:
        """An optimizer has gradients, or there was no pass for its step."""
        self.streaks.pop(owner, None)
        self._pending.pop(owner, None)

    def follow(self, moment: Moment) -> None:
        """Enter what becomes of gradients; before the step of an optimizer is entered."""
        for owner, (step, pending) in list(self._pending.items()):
            is_used = not pending.isdisjoint(moment.applied)
            if is_used or moment.family == Families.SCALER_STEP:
                self.forget(owner)
                continue
            pending.difference_update(moment.cleared)
            if not pending:
                del self._pending[owner]
                extend(self.streaks, owner, step)
        if moment.family == Families.BACKWARD:
            self._spans.add(moment.call.span)
            self._reached |= moment.reached

    def enter(self, owner: str, facts: StepFacts) -> None:
        """Enter a step of an optimizer that never had a gradient."""
        step = facts.event.step
        if not self._spans:
            self.forget(owner)
        elif self._reached:
            self._pending.setdefault(owner, (step, set()))[1].update(self._reached)
        elif not any(look.after in self._spans for look in facts.gradients.values()):
            extend(self.streaks, owner, step)  # else they are zeros, of a loss that is weighted so

    def settle(self, moment: Moment) -> None:
        """After the step of any optimizer: the passes before it are not for the next."""
        if moment.family in _STEPS:
            self._spans.clear()
            self._reached.clear()
