"""Optimizers over tensors that no model owns, of which none ever has a gradient."""

from __future__ import annotations

from dataclasses import replace

from traincheck.rules._ledger import Moment, StepFacts, proof
from traincheck.rules._streak import Streak, extend
from traincheck.schema.apis import Families
from traincheck.schema.findings import Subject, Symptom, Violation

_CONFIRMED = 10
_COPIES = (
    "The optimizer holds copies of parameters, as clone(), detach() or state_dict() give them, or "
    "tensors that the program has since replaced by others: {observed}."
)
_OWN = "Give the optimizer model.parameters(), or the very tensors that the loss is computed from."


class LooseTensors:
    """Such tensors may be put there right before a step, which tells where there is no gradient."""

    def __init__(self) -> None:
        self._streaks: dict[str, Streak] = {}
        self._over: set[str] = set()  # optimizers that had a gradient, or that were told

    def forget(self) -> None:
        """A step was not seen."""
        self._streaks.clear()

    def judge(self, moment: Moment, facts: StepFacts, label: str) -> list[Violation]:
        """A step of an optimizer that holds nothing else."""
        owner = str(moment.call.owner)
        if moment.call.args.get("gradients") != 0:
            self._over.add(owner)
        has_passed = any(other.family == Families.BACKWARD for other in facts.moments)
        if owner in self._over or not has_passed:
            return []
        streak = extend(self._streaks, owner, facts.event.step)
        if streak.count < _CONFIRMED:
            return []
        self._over.add(owner)
        found = proof(
            ("TC203", Symptom.STEP_WITHOUT_GRADIENT),
            facts,
            step=streak.first,
            subject=Subject(api=Families.OPTIMIZER_STEP),
            message=f"{label} steps, and nothing that it holds ever has a gradient",
            expected="gradients from backward() are there when the optimizer steps",
            observed=f"none in {streak.count} steps of {label}, which holds tensors of no model",
            evidence=[moment.call],
        )
        return [replace(found, likely_cause=_COPIES, fix=_OWN)]
