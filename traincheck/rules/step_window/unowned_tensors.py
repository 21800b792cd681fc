"""Optimizers over tensors that no model owns, of which none has a gradient, ever or any more."""

from __future__ import annotations

from dataclasses import replace

from traincheck.facts.step_facts import Moment, StepFacts
from traincheck.rules.base.step_rule import proof
from traincheck.rules.base.streak import Streak, extend
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families

_CONFIRMED = 10
_CONFIRMED_LATER = 50  # after gradients: what they are of may have no part in the loss for a while
_COPIES = (
    "The optimizer holds copies of parameters, as clone(), detach() or state_dict() give them, or "
    "tensors that the program has since replaced by others: {observed}."
)
_FORMER = (
    "The program has put other tensors in the place of those that the optimizer holds, as where "
    "points are added or pruned, and it still holds the former: {observed}."
)
_RENEW = "Put the new tensors into optimizer.param_groups, and what is kept of each into its state."
_OWN = "Give the optimizer model.parameters(), or the very tensors that the loss is computed from."


class LooseTensors:
    """Such tensors may be put there right before a step, which tells where there is no gradient."""

    def __init__(self) -> None:
        self._streaks: dict[str, Streak] = {}
        self._told: set[str] = set()
        # Of optimizers that had a gradient: the lines that called backward() then
        self._lines: dict[str, set[str | None]] = {}

    def forget(self) -> None:
        """A step was not seen."""
        self._streaks.clear()

    def judge(self, moment: Moment, facts: StepFacts, label: str) -> list[Violation]:
        """A step of an optimizer that holds nothing else."""
        owner = str(moment.call.owner)
        lines = {m.call.where for m in facts.moments if m.family == Families.BACKWARD}
        if moment.call.args.get("gradients") != 0:
            self._lines[owner] = self._lines.get(owner, set()) | lines
            self._streaks.pop(owner, None)
            return []
        known = self._lines.get(owner)
        if owner in self._told or not (lines if known is None else lines & known):
            return []
        streak = extend(self._streaks, owner, facts.event.step)
        if streak.count < (_CONFIRMED if known is None else _CONFIRMED_LATER):
            return []
        self._told.add(owner)
        what = "ever has a gradient" if known is None else "has a gradient any more"
        found = proof(
            ("TC203", Symptom.STEP_WITHOUT_GRADIENT),
            facts,
            step=streak.first,
            subject=Subject(api=Families.OPTIMIZER_STEP),
            message=f"{label} steps, and nothing that it holds {what}",
            expected="gradients from backward() are there when the optimizer steps",
            observed=f"none in {streak.count} steps of {label}, which holds tensors of no model",
            evidence=[moment.call],
        )
        cause, fix = (_COPIES, _OWN) if known is None else (_FORMER, _RENEW)
        return [replace(found, likely_cause=cause, fix=fix)]
