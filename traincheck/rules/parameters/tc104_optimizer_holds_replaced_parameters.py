"""An optimizer still holds parameters that no longer belong to any model."""

from __future__ import annotations

from traincheck.facts.optimizers import Holder
from traincheck.facts.step_facts import DISCOVERY, GRADIENTS, StepFacts
from traincheck.rules.base.rule import Streak, extend
from traincheck.rules.base.step_rule import StepRule
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families

_CONFIRMED = 2


class OptimizerHoldsReplacedParameters(
    StepRule, code="TC104", severity="info", aliases=("stale-parameters",)
):
    """optimizer-holds-replaced-parameters: a layer was replaced after the optimizer was made.

    What it checks:
        Every parameter of an optimizer that steps still belongs to a module.

    Why it matters:
        The old parameters waste memory, and their state is saved with every checkpoint. If the new
        parameters are in no optimizer, TC101 reports that.

    Fires on:
        - Two steps in a row of an optimizer that holds live parameters and also replaced or removed
          ones that get no gradient.

    Stays quiet on:
        - Tensors that are optimized directly.
        - Optimizers that no longer step.

    Fix:
        Build the optimizer when the model is final.

    Source:
        https://github.com/pytorch/pytorch/issues/14467, https://github.com/deepspeedai/DeepSpeed/issues/6770
    """

    title = "An optimizer holds parameters that no model has any more"
    likely_cause = "A layer was replaced after the optimizer{where} was built: {observed}."
    fix = "Build the optimizer when the model is final."
    needs = DISCOVERY | GRADIENTS

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[str, Streak] = {}

    def judge(self, facts: StepFacts) -> list[Violation]:
        if not facts.is_complete:
            self._seen.clear()
            return []
        found: list[Violation] = []
        owners = {str(moment.call.owner) for moment in facts.updates()}
        for owner in sorted(owners & self.ledger.holders.keys()):
            self.triggered += 1
            holder = self.ledger.holders[owner]
            known = self.ledger.parameters
            lost = sorted(
                holder.names[i]
                for i in holder.ids
                if i not in known and not holder.is_unowned(i) and i not in facts.gradients
            )
            # TC101 covers an optimizer that holds no live parameter at all.
            if not lost or holder.ids.isdisjoint(self.ledger.parameters):
                continue
            streak = extend(self._seen, owner, facts.event.step)
            if streak.count == _CONFIRMED:
                found += [self._violation(name, holder, streak.first, facts) for name in lost]
        return found

    def _violation(
        self, name: str, holder: Holder, step: int | None, facts: StepFacts
    ) -> Violation:
        calls = [m.call for m in facts.updates() if m.call.owner == holder.event.id]
        return self.proof(
            facts,
            step=step,
            subject=Subject(api=Families.OPTIMIZER_STEP, variable=name),
            symptom=Symptom.NOT_IN_OPTIMIZER,
            message=f"{holder.label} holds {name}, but no model has it any more",
            expected="every parameter of an optimizer belongs to a model",
            observed=f"{holder.label} holds parameters that were replaced or removed",
            evidence=(holder.made, *calls[:1]),
        )
