"""Gradient scalers that are bypassed, or skip every step."""

from __future__ import annotations

from dataclasses import dataclass

from traincheck.readings.step_facts import DISCOVERY, GRADIENTS, StepFacts
from traincheck.rules.base.rule import fresh
from traincheck.rules.base.step_rule import StepRule
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
    _scaling = False  # a loss was scaled, its backward() follows
    _scaled: set[int] = fresh(set)

    def judge(self, facts: StepFacts) -> list[Violation]:
        if not facts.is_complete:
            self._scaling = False
            self._scaled.clear()
            return []
        through = {m.call.span for m in facts.moments if m.family == Families.SCALER_STEP}
        found: list[Violation] = []
        for moment in facts.moments:
            self._scaled -= moment.cleared
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
                    label = self.ledger.holders[str(moment.call.owner)].label
                    found += self.proven(
                        facts,
                        subject=Subject(api=Families.OPTIMIZER_STEP),
                        symptom=Symptom.WRONG_ORDER,
                        message=f"{label} steps directly although its gradients are multiplied by "
                        "the scale of GradScaler",
                        expected="scaler.step(optimizer), which divides gradients by the scale",
                        observed=f"{label} applies {len(wrong)} gradients of a loss scaled by "
                        "scaler.scale()",
                        evidence=(moment.call,),
                        optimizer=self.ledger.one_of_several(str(moment.call.owner)),
                    )
                    continue
        return found


class ScalerSkipsEveryStep(StepRule, code="TC208", severity="error"):
    """scaler-skips-every-step: GradScaler finds overflow in every step and skips them all.

    What it checks:
        scaler.step() lets its optimizer step, apart from a few times while the scale settles.

    Why it matters:
        Nothing is learned, but the loop and its scheduler continue as usual. The learning rate may
        have decayed to zero before the first update.

    Fires on:
        - Ten skipped steps in a row.
        - A run of at least three skipped steps that ends without a single update.

    Stays quiet on:
        - A few skipped steps, at the start or occasionally.
        - A scaler that is disabled.
        - Steps that were not recorded.

    Fix:
        Find the cause of the overflow in the loss or its gradients. Lower init_scale. Step the
        scheduler only when the optimizer has stepped.

    Options:
        - skipped: number of skipped steps in a row that are a fault.
        - skipped_of_all: number of skipped steps that are a fault if a run ends without any update.

    Source:
        https://github.com/Lightning-AI/pytorch-lightning/issues/18828,
        https://github.com/huggingface/accelerate/issues/4242
    """

    title = "GradScaler skips every optimizer step"
    title_of_several = "GradScaler skips every step of {optimizer}"
    likely_cause = (
        "The scaled gradients are infinite or NaN at every step(){where}: {observed}. The "
        "loss may overflow, or init_scale may be far too large."
    )
    fix = (
        "Find the cause of the overflow in the loss, or lower init_scale. Step the scheduler only "
        "after a step that was not skipped."
    )
    needs = (
        DISCOVERY
        | GRADIENTS
        | Needs(calls=frozenset({Families.SCALER_STEP, Families.SCHEDULER_STEP}))
    )
    skipped: int = 10
    skipped_of_all: int = 3
    _runs: dict[str, _Run] = fresh(dict)
    _stepped: set[str] = fresh(set)

    def judge(self, facts: StepFacts) -> list[Violation]:
        if facts.is_gap:
            self._runs.clear()
            self._stepped |= self.ledger.holders.keys()  # they may have stepped
            return []
        found: list[Violation] = []
        inner = {m.call.parent for m in facts.updates()}
        self._stepped |= {str(m.call.owner) for m in facts.updates()}
        for moment in facts.moments:
            owner = str(moment.call.owner)
            if moment.family == Families.SCHEDULER_STEP and owner in self._runs:
                self._runs[owner].scheduled += 1
            elif moment.family == Families.SCALER_STEP and owner in self.ledger.holders:
                self.triggered += 1
                is_skipped = moment.call.args.get("enabled") is not False
                if moment.call.span in inner or not is_skipped:
                    self._runs.pop(owner, None)
                else:
                    run = self._runs.setdefault(owner, _Run())
                    run.first = facts.event.step if run.count == 0 else run.first
                    run.count += 1
                    if run.count > self.skipped:
                        continue
                    label = self.ledger.holders[owner].label
                    beside = (
                        f", while its scheduler stepped {run.scheduled} times"
                        if run.scheduled
                        else ""
                    )
                    run.pending = self.proof(
                        facts,
                        step=run.first,
                        subject=Subject(api=Families.SCALER_STEP),
                        symptom=Symptom.STEPS_SKIPPED,
                        message=f"GradScaler skips {run.count} steps of {label} in a row{beside}",
                        expected=f"scaler.step() lets {label} step",
                        observed=f"{run.count} steps in a row were skipped{beside}",
                        evidence=(moment.call,),
                        optimizer=self.ledger.one_of_several(owner),
                    )
                    found += [run.pending] if run.count == self.skipped else []
        return found

    def finish(self) -> list[Violation]:
        """Report after fewer steps: the run ended without an update."""
        return [
            run.pending
            for owner, run in self._runs.items()
            if owner not in self._stepped
            and self.skipped_of_all <= run.count < self.skipped
            and run.pending is not None
        ]


@dataclass(slots=True)
class _Run:
    """Skipped steps in a row of one optimizer.

    Attributes:
        scheduled: scheduler steps meanwhile.
    """

    count: int = 0
    scheduled: int = 0
    first: int | None = None
    pending: Violation | None = None
