"""Parameters that two optimizers update, and optimizers that hold replaced parameters."""

from __future__ import annotations

from traincheck.readings.optimizers import Holder
from traincheck.readings.step_facts import DISCOVERY, GRADIENTS, StepFacts
from traincheck.rules.base.rule import Streak, extend, fresh
from traincheck.rules.base.step_rule import StepRule
from traincheck.schema.events import CallEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families

_CONFIRMED = 2


class ParameterUpdatedTwice(StepRule, code="TC103"):
    """parameter-updated-twice: two optimizers hold a parameter and both apply its gradient.

    What it checks:
        Between two changes of its gradient, only one optimizer updates a parameter.

    Why it matters:
        Each gradient counts twice, with two learning rates and two sets of moments. The parameter
        moves too far, and neither optimizer is tuned for that.

    Fires on:
        - Two iterations in a row in which two optimizers step one after the other with the same
          gradient of a parameter that both hold.

    Stays quiet on:
        - Optimizers that alternate, e.g. Adam first and then LBFGS.
        - A shared part whose gradient is cleared or recomputed between the two steps.
        - An optimizer that wraps another one.
        - Tied weights.

    Fix:
        Give each parameter to one optimizer only. Use parameter groups for different settings.

    Source:
        https://pytorch.org/docs/stable/optim.html#per-parameter-options
    """

    title = "Two optimizers update {variables} with one gradient"
    likely_cause = "{observed}, and both step{where} after the same backward()."
    fix = "Take {variables} out of one of the two optimizers."
    needs = DISCOVERY | GRADIENTS
    _streak: dict[int, Streak] = fresh(dict)  # iterations in a row

    def judge(self, facts: StepFacts) -> list[Violation]:
        if not facts.is_complete:
            self._streak.clear()
            return []
        twice = self._twice(facts)
        if facts.updates():
            self._streak = {i: s for i, s in self._streak.items() if i in twice}
        found: list[Violation] = []
        for identity in sorted(twice, key=self.ledger.name):
            streak = extend(self._streak, identity, facts.event.step)
            if streak.count >= _CONFIRMED:
                step = streak.at(_CONFIRMED, facts.event.step)
                calls = twice[identity]
                name = self.ledger.name(identity)
                first, second = (self.ledger.holders[str(call.owner)].label for call in calls)
                found += self.proven(
                    facts,
                    step=step,
                    subject=Subject(variable=name),
                    symptom=Symptom.APPLIED_TWICE,
                    message=f"{first} and {second} both apply the same gradient to {name}",
                    expected="one optimizer applies each gradient",
                    observed=f"{first} and {second} hold the same parameters",
                    evidence=(calls[1], calls[0]),
                )
        return found

    def _twice(self, facts: StepFacts) -> dict[int, tuple[CallEvent, CallEvent]]:
        applied: dict[int, CallEvent] = {}
        twice: dict[int, tuple[CallEvent, CallEvent]] = {}
        for moment in facts.moments:
            for identity in moment.cleared | moment.reached:
                applied.pop(identity, None)
            if moment.family != Families.OPTIMIZER_STEP or moment.call.exception is not None:
                continue
            self.triggered += 1
            for identity in moment.applied:
                before = applied.get(identity)
                # Whether the steps follow each other. A wrapper's step begins before the inner one.
                if before is not None and (
                    before.owner != moment.call.owner and before.span < moment.call.span
                ):
                    twice[identity] = (before, moment.call)
                applied[identity] = moment.call
        return twice


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
    _seen: dict[str, Streak] = fresh(dict)

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
