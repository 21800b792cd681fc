"""Backward passes whose gradients the next step does not use: did another optimizer use them?"""

from __future__ import annotations

from traincheck.readings.step_facts import Moment, StepFacts
from traincheck.rules.base.rule import Streak, extend
from traincheck.schema.torch_api import Families

_STEPS = frozenset({Families.OPTIMIZER_STEP, Families.SCALER_STEP})


class UnusedPasses:
    """Tracks backward passes whose gradients are cleared before any optimizer applies them.

    Attributes:
        streaks: by optimizer, its steps in a row for which a pass was unused.
    """

    def __init__(self) -> None:
        self.streaks: dict[str, Streak] = {}
        self._pending: dict[str, tuple[int | None, set[int]]] = {}  # pending passes by optimizer
        self._spans: set[int] = set()  # spans of passes since any optimizer stepped
        self._reached: set[int] = set()  # parameters reached by these passes

    def forget(self, owner: str) -> None:
        """Forget an optimizer that has gradients, or had no pass for its step."""
        self.streaks.pop(owner, None)
        self._pending.pop(owner, None)

    def follow(self, moment: Moment) -> None:
        """Note how a call uses gradients. Call this before entering an optimizer's step."""
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
            extend(self.streaks, owner, step)  # else: zeros, e.g. a loss of weight 0

    def settle(self, moment: Moment) -> None:
        """Drop the passes before a step of any optimizer: they do not belong to the next step."""
        if moment.family in _STEPS:
            self._spans.clear()
            self._reached.clear()
