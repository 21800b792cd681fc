"""Gradients that are zero: of an optimizer as a whole, and of one parameter."""

from __future__ import annotations

from traincheck.readings.step_facts import DISCOVERY, GRADIENTS, StepFacts
from traincheck.rules.base.rule import Streak, extend
from traincheck.rules.base.step_rule import StepRule
from traincheck.rules.shared.numbers import MATRIX, losses
from traincheck.schema.claims import Needs
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families

_UNKNOWN = 4  # times as many steps if the loss is unknown


class GradientAllZero(StepRule, code="TC704"):
    """gradient-all-zero: the loss is flat, so the model cannot learn from it.

    What it checks:
        While the loss is not zero, backward() gives at least one parameter of an optimizer a
        nonzero gradient.

    Why it matters:
        All calls are made and all gradients exist, but the steps change nothing. The loss still
        varies from batch to batch, which looks like slow learning.

    Fires on:
        - Five consecutive optimizer steps with a nonzero loss, whose gradients are all exactly zero
          after backward().
        - Twenty such steps if the loss is unknown.

    Stays quiet on:
        - A loss of zero, e.g. a satisfied margin.
        - Parameters with a zero gradient beside others with a nonzero one, as in LoRA, mixtures of
          experts and embeddings.
        - Steps before backward() (TC203).
        - Unrecorded steps.

    Fix:
        Find the flat operation between parameters and loss: rounding, argmax, a comparison,
        clamping, or units that are all dead.

    Options:
        steps: consecutive steps.

    Source:
        https://discuss.pytorch.org/t/torch-round-gradient/28628/4,
        https://docs.aws.amazon.com/sagemaker/latest/dg/debugger-built-in-rules.html
    """

    title = "All gradients are zero while the loss is not"
    likely_cause = (
        "{observed}. An operation between the parameters and the loss may be flat: rounding, "
        "argmax, a comparison, clamping, or units that are all dead."
    )
    fix = "Replace the flat operation, or clamp less; check the activations of the last layers."
    needs: Needs = DISCOVERY | GRADIENTS

    def __init__(self, steps: int = 5) -> None:
        super().__init__()
        self.steps = steps
        self._streaks: dict[str, Streak] = {}

    def judge(self, facts: StepFacts) -> list[Violation]:
        if not facts.is_complete:
            self._streaks.clear()
            return []
        found: list[Violation] = []
        for moment in facts.updates():
            holder = self.ledger.holders.get(str(moment.call.owner))
            if holder is None or not moment.present:
                continue
            self.triggered += 1
            values = losses(facts)
            if (
                moment.applied
                or not facts.reached.isdisjoint(holder.ids)
                or (values is not None and not any(values))
            ):
                self._streaks.pop(holder.event.id, None)
                continue
            streak = extend(self._streaks, holder.event.id, facts.event.step)
            if streak.count != (self.steps if values else _UNKNOWN * self.steps):
                continue
            loss = f"the loss is {values[-1]:.4g}, " if values else ""
            found.append(
                self.proof(
                    facts,
                    step=streak.first,
                    subject=Subject(api=Families.BACKWARD),
                    symptom=Symptom.NOT_LEARNING,
                    message=(
                        f"backward() gives {holder.label} gradients that are exactly zero, in "
                        "consecutive steps"
                    ),
                    expected="a nonzero gradient while the loss is not zero",
                    observed=f"{loss}all gradients were zero in {streak.count} consecutive steps",
                    evidence=[m.call for m in facts.moments if m.family == Families.BACKWARD][:1],
                )
            )
        return found


class ParameterGradientZero(StepRule, code="TC715", severity="info"):
    """parameter-gradient-zero: backward() gives a parameter a gradient of zeros only.

    What it checks:
        The gradient of a parameter is not exactly zero for many steps while others of the same
        optimizer have a nonzero gradient.

    Why it matters:
        Such a parameter does not learn. The units after it are dead, its output is multiplied by
        zero, or it belongs to a branch that is never taken.

    Fires on:
        - Ten consecutive optimizer steps at which the gradient of a parameter exists and is all
          zero.

    Stays quiet on:
        - A single step, e.g. for the A of LoRA while B is zero.
        - Gradients that are None.
        - Embeddings, whose rows are used now and then.
        - Biases that cancel out in a loss of differences.
        - Scales in modules of torch.
        - Models in which all gradients are zero (TC704).

    Fix:
        Check the computation after the parameter: inactive activations, masks, weights of zero.

    Options:
        steps: consecutive steps.

    Source:
        https://docs.aws.amazon.com/sagemaker/latest/dg/debugger-built-in-rules.html
    """

    title = "The gradient of {variables} is zero at every step"
    likely_cause = (
        "{observed}: the computation after it may be inactive, clamped, multiplied by zero, "
        "or in a branch that is never taken."
    )
    fix = (
        "Print the output of the module of {variables}. Find the mask, clamp, zero factor or "
        "branch after it and remove it, or set requires_grad=False."
    )
    needs: Needs = DISCOVERY | GRADIENTS

    def __init__(self, steps: int = 10) -> None:
        super().__init__()
        self.steps = steps
        self._streaks: dict[int, Streak] = {}

    def judge(self, facts: StepFacts) -> list[Violation]:
        if not facts.is_complete:
            self._streaks.clear()
            return []
        found: list[Violation] = []
        for moment in facts.updates():
            if not moment.applied:
                continue
            self.triggered += 1
            for identity in moment.applied & self._streaks.keys():
                del self._streaks[identity]
            for identity in moment.present - moment.applied:
                found += self._count(identity, facts)
        if facts.by_hand:
            found += self._by_hand(facts)
        return found

    def _by_hand(self, facts: StepFacts) -> list[Violation]:
        """Judge a step in which the program updates parameters itself."""
        self.triggered += 1
        looks = [(i, look.summary) for i, look in facts.gradients.items()]
        for identity in facts.reached & self._streaks.keys():
            del self._streaks[identity]
        zeros = [i for i, summary in looks if summary is not None and summary.zero is True]
        return [found for i in zeros if i not in facts.reached for found in self._count(i, facts)]

    def _count(self, identity: int, facts: StepFacts) -> list[Violation]:
        look = facts.gradients.get(identity)
        parameter = self.ledger.parameters.get(identity)
        if look is not None and "Embedding" in (look.module_class or ""):
            return []
        if parameter is None:
            return []
        # Whether it is a weight, or another parameter of a user-defined module except biases.
        kind = "" if look is None else look.module_class or ""
        is_own = bool(kind) and not kind.startswith("torch.")
        if not (
            len(parameter.shape) >= MATRIX or (is_own and "bias" not in parameter.name.lower())
        ):
            return []
        streak = extend(self._streaks, identity, facts.event.step)
        if streak.count != self.steps:
            return []
        name = self.ledger.name(identity)
        return [
            self.proof(
                facts,
                step=streak.first,
                subject=Subject(variable=name),
                symptom=Symptom.NOT_LEARNING,
                message=f"the gradient of {name} is exactly zero in consecutive steps",
                expected="a gradient that is nonzero at least now and then",
                observed=f"zero in {streak.count} consecutive steps",
                evidence=() if look is None else (look,),
            )
        ]
