"""An optimizer applies gradients that are still multiplied by the loss scale."""

from __future__ import annotations

from traincheck.readings.step_facts import DISCOVERY, GRADIENTS, Moment, StepFacts
from traincheck.rules.base.step_rule import StepRule, proof
from traincheck.schema.claims import Needs
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families


class ScalerBypassed(StepRule, code="TC207", severity="error"):
    """scaler-bypassed: optimizer.step() applies gradients of a scaled loss.

    What it checks:
        Gradients of a loss that GradScaler has scaled are applied through scaler.step(), or after
        scaler.unscale_().

    Why it matters:
        The update is too large by the factor of the scale (65536 at first). With Adam it looks
        almost right, but overflows are applied too, and weight decay, eps and clipping lose their
        meaning.

    Fires on:
        - optimizer.step() called directly after scaler.scale(loss).backward().

    Stays quiet on:
        - scaler.step(optimizer).
        - A scaler that is disabled.
        - An optimizer whose own loss is not scaled.
        - unscale_() before the step.

    Fix:
        Call scaler.step(optimizer) and scaler.update() in place of optimizer.step().

    Source:
        https://pytorch.org/docs/stable/notes/amp_examples.html (the right loop)
    """

    title = "The optimizer applies scaled gradients"
    title_of_several = "{optimizer} applies scaled gradients"
    likely_cause = "optimizer.step(){where} is called directly, not through GradScaler."
    fix = "Call scaler.step(optimizer), then scaler.update(), in place of optimizer.step()."
    fix_of_several = (
        "Call scaler.step() with {optimizer} instead of calling its step(), and call "
        "scaler.update() after the last scaler.step()."
    )
    needs = (
        DISCOVERY
        | GRADIENTS
        | Needs(calls=frozenset({Families.SCALE, Families.UNSCALE, Families.SCALER_STEP}))
    )

    def __init__(self) -> None:
        super().__init__()
        self._scaling = False  # a loss was scaled, its backward() follows
        self._scaled: set[int] = set()

    def judge(self, facts: StepFacts) -> list[Violation]:
        if not facts.is_complete:
            self._scaling = False
            self._scaled.clear()
            return []
        through = {m.call.span for m in facts.moments if m.family == Families.SCALER_STEP}
        found: list[Violation] = []
        for moment in facts.moments:
            self._scaled -= moment.cleared
            found += self._follow(moment, facts, through)
        return found

    def _follow(self, moment: Moment, facts: StepFacts, through: set[int]) -> list[Violation]:
        call, family = moment.call, moment.family
        if family == Families.SCALE:
            self._scaling = call.args.get("enabled") is not False
        elif family == Families.BACKWARD:
            if self._scaling:
                self._scaled |= moment.reached
            self._scaling = False
        elif family in (Families.UNSCALE, Families.SCALER_STEP):
            holder = self.ledger.holders.get(str(call.owner))
            self._scaled -= self._scaled if holder is None else holder.ids
        elif family == Families.OPTIMIZER_STEP and self._scaled:
            self.triggered += 1
            wrong = moment.applied & self._scaled
            if wrong and call.parent not in through:
                return [self._violation(moment, wrong, facts)]
        return []

    def _violation(self, moment: Moment, wrong: frozenset[int], facts: StepFacts) -> Violation:
        label = self.ledger.holders[str(moment.call.owner)].label
        return proof(
            (self.code, Symptom.WRONG_ORDER, self.ledger.one_of_several(str(moment.call.owner))),
            facts,
            subject=Subject(api=Families.OPTIMIZER_STEP),
            message=(
                f"{label} steps directly although its gradients are multiplied by the scale of "
                "GradScaler"
            ),
            expected="scaler.step(optimizer), which divides gradients by the scale",
            observed=f"{label} applies {len(wrong)} gradients of a loss scaled by scaler.scale()",
            evidence=(moment.call,),
        )
