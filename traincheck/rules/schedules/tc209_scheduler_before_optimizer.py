"""The scheduler steps between backward() and the optimizer step."""

from __future__ import annotations

from dataclasses import dataclass

from traincheck.readings.step_facts import DISCOVERY, GRADIENTS, Moment, StepFacts
from traincheck.rules.base.rule import Streak, extend, fresh
from traincheck.rules.base.step_rule import StepRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families

_CONFIRMED = 2


class SchedulerBeforeOptimizer(StepRule, code="TC209"):
    """scheduler-before-optimizer: scheduler.step() comes before optimizer.step().

    What it checks:
        The first steps of an optimizer come before those of its scheduler.

    Why it matters:
        The first value of the schedule is never used, and every later value comes one step too
        soon. A warm-up that starts at a small rate is shortened.

    Fires on:
        - The first two iterations with backward(), scheduler.step(), optimizer.step() in this
          order.

    Stays quiet on:
        - The usual order.
        - A scheduler that steps for every batch of an accumulation window, or once per epoch.
        - Steps that GradScaler skips.
        - Schedulers that are moved forward before training.

    Fix:
        Call scheduler.step() after optimizer.step().

    Source:
        https://pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate
    """

    title = "The scheduler steps before its optimizer"
    title_of_several = "The scheduler of {optimizer} steps before it"
    likely_cause = "scheduler.step(){where} is called between backward() and optimizer.step()."
    fix = "Call scheduler.step() after optimizer.step()."
    fix_of_several = "Call step() of the scheduler after step() of {optimizer}."
    needs = (
        DISCOVERY
        | GRADIENTS
        | Needs(calls=frozenset({Families.SCALER_STEP, Families.SCHEDULER_STEP}))
    )
    _windows: dict[str, _Window] = fresh(dict)
    _early: dict[str, Streak] = fresh(dict)  # steps in a row, first step
    _settled: set[str] = fresh(set)

    def judge(self, facts: StepFacts) -> list[Violation]:
        if not facts.is_complete:
            self._settled |= self.ledger.holders.keys()  # the first steps are over
            return []
        found: list[Violation] = []
        for moment in facts.moments:
            for key, holder in self.ledger.holders.items():
                if key in self._settled:
                    continue
                window = self._windows.setdefault(key, _Window())
                if not moment.cleared.isdisjoint(holder.ids):
                    self._windows[key] = window = _Window()
                if moment.family == Families.BACKWARD and moment.reached & holder.ids:
                    window.backwards += 1
            owner = str(moment.call.owner)
            self.triggered += moment.family == Families.SCHEDULER_STEP
            if owner in self._windows and owner not in self._settled:
                found += self._follow(owner, moment, facts)
        return found

    def _follow(self, owner: str, moment: Moment, facts: StepFacts) -> list[Violation]:
        window = self._windows[owner]
        if moment.family == Families.SCHEDULER_STEP:
            if window.backwards == 1:
                window.early = moment.call
            elif not window.backwards:
                self._settled.add(owner)  # the usual order, or another deliberate one
            return []
        if moment.family not in (Families.OPTIMIZER_STEP, Families.SCALER_STEP):
            return []
        self._windows[owner] = _Window()
        if window.early is None or window.backwards != 1:
            if window.backwards:
                self._settled.add(owner)
            return []
        streak = extend(self._early, owner, facts.event.step)
        if streak.count < _CONFIRMED:
            return []
        self._settled.add(owner)
        label = self.ledger.holders[owner].label
        name = window.early.api.split(".")[-2]
        return self.proven(
            facts,
            step=streak.first,
            subject=Subject(api=Families.SCHEDULER_STEP),
            symptom=Symptom.WRONG_ORDER,
            message=f"{name}.step() comes before the step of {label}, from the first one on",
            expected=f"{name}.step() after the step of {label}",
            observed=f"backward(), {name}.step(), step of {label}",
            evidence=(window.early, moment.call),
            optimizer=self.ledger.one_of_several(owner),
        )


@dataclass(slots=True)
class _Window:
    """State since the last step of an optimizer, taken or skipped."""

    backwards: int = 0
    early: CallEvent | None = None
