"""Optimizers over tensors that no model owns and that have no gradient, ever or any longer."""

from __future__ import annotations

from dataclasses import replace

from traincheck.readings.step_facts import Moment, StepFacts
from traincheck.rules.base.rule import Streak, extend
from traincheck.rules.base.step_rule import proof
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
        found = proof(
            ("TC203", Symptom.STEP_WITHOUT_GRADIENT),
            facts,
            step=streak.first,
            subject=Subject(api=Families.OPTIMIZER_STEP),
            message=f"{label} steps, but none of its tensors {what}",
            expected="the optimizer steps with gradients from backward()",
            observed=f"none in {streak.count} steps of {label}, which holds tensors of no model",
            evidence=[moment.call],
        )
        cause, fix = (_COPIES, _OWN) if known is None else (_FORMER, _RENEW)
        return [replace(found, likely_cause=cause, fix=fix)]
