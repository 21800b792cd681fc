"""Every gradient that an optimizer applies is exactly zero although the loss is not."""

from __future__ import annotations

from traincheck.readings.optimizers import Holder
from traincheck.readings.step_facts import DISCOVERY, GRADIENTS, StepFacts
from traincheck.rules.base.rule import Streak, extend
from traincheck.rules.base.step_rule import StepRule, proof
from traincheck.rules.shared.numbers import losses
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
            if moment.applied or not facts.reached.isdisjoint(holder.ids) or _is_zero(values):
                self._streaks.pop(holder.event.id, None)
                continue
            found += self._count(holder, values, facts)
        return found

    def _count(
        self, holder: Holder, values: list[float] | None, facts: StepFacts
    ) -> list[Violation]:
        streak = extend(self._streaks, holder.event.id, facts.event.step)
        if streak.count != (self.steps if values else _UNKNOWN * self.steps):
            return []
        loss = f"the loss is {values[-1]:.4g}, " if values else ""
        return [
            proof(
                (self.code, Symptom.NOT_LEARNING),
                facts,
                step=streak.first,
                subject=Subject(api=Families.BACKWARD),
                message=(
                    f"backward() gives {holder.label} gradients that are exactly zero, in "
                    "consecutive steps"
                ),
                expected="a nonzero gradient while the loss is not zero",
                observed=f"{loss}all gradients were zero in {streak.count} consecutive steps",
                evidence=[m.call for m in facts.moments if m.family == Families.BACKWARD][:1],
            )
        ]


def _is_zero(values: list[float] | None) -> bool:
    return values is not None and not any(values)
