"""Optimizers whose tensors get no gradient: what TC203 watches beside the parameters of models."""

from __future__ import annotations

from traincheck.readings.step_facts import Moment, StepFacts
from traincheck.rules.base.rule import Streak, extend
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families

_CONFIRMED = 10
_CONFIRMED_LATER = 50  # after gradients: the tensors may be outside the loss for a while
_COPIES = (
    "The optimizer holds copies of parameters (clone(), detach(), state_dict()), or tensors that "
    "the program has since replaced by others: {observed}."
)
_FORMER = (
    "The program has replaced the tensors that the optimizer holds, e.g. when points are added or "
    "pruned, and the optimizer still holds the old ones: {observed}."
)
_RENEW = (
    "Put the new tensors into optimizer.param_groups, and carry over their entries in "
    "optimizer.state."
)
_OWN = "Give the optimizer model.parameters(), or the same tensors that the loss is computed from."


class LooseTensors:
    """Counts steps without gradients of such optimizers.

    The step call reports its gradients, since the tensors may be added right before the step.
    """

    def __init__(self) -> None:
        self._streaks: dict[str, Streak] = {}
        self._reported: set[str] = set()
        # By optimizer that had a gradient: the lines that called backward() then
        self._lines: dict[str, set[str | None]] = {}

    def forget(self) -> None:
        """Forget all streaks, as a step was not recorded."""
        self._streaks.clear()

    def judge(self, moment: Moment, facts: StepFacts, label: str) -> list[Violation]:
        """Violations of a step of an optimizer that holds only such tensors."""
        owner = str(moment.call.owner)
        lines = {m.call.where for m in facts.moments if m.family == Families.BACKWARD}
        if moment.call.args.get("gradients") != 0:
            self._lines[owner] = self._lines.get(owner, set()) | lines
            self._streaks.pop(owner, None)
            return []
        known = self._lines.get(owner)
        if owner in self._reported or not (lines if known is None else lines & known):
            return []
        streak = extend(self._streaks, owner, facts.event.step)
        if streak.count < (_CONFIRMED if known is None else _CONFIRMED_LATER):
            return []
        self._reported.add(owner)
        what = "ever has a gradient" if known is None else "has a gradient any more"
        cause, fix = (_COPIES, _OWN) if known is None else (_FORMER, _RENEW)
        found = Violation(
            check_id="TC203",
            step=streak.first,
            rank=facts.event.rank,
            stage="eval" if moment.call.stage == "eval" else "train",
            subject=Subject(api=Families.OPTIMIZER_STEP),
            symptom=Symptom.STEP_WITHOUT_GRADIENT,
            message=f"{label} steps, but none of its tensors {what}",
            expected="the optimizer steps with gradients from backward()",
            observed=f"none in {streak.count} steps of {label}, which holds tensors of no model",
            evidence=(moment.call,),
            likely_cause=cause,
            fix=fix,
        )
        return [found]


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
