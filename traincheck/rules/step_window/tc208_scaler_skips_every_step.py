"""GradScaler skips one optimizer step after another."""

from __future__ import annotations

from dataclasses import dataclass

from traincheck.readings.step_facts import DISCOVERY, GRADIENTS, Moment, StepFacts
from traincheck.rules.base.step_rule import StepRule, proof
from traincheck.schema.claims import Needs
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families


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

    def __init__(self, skipped: int = 10, skipped_of_all: int = 3) -> None:
        super().__init__()
        self.skipped = skipped
        self.skipped_of_all = skipped_of_all
        self._runs: dict[str, _Run] = {}
        self._stepped: set[str] = set()

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
                    found += self._skip(owner, moment, facts)
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

    def _skip(self, owner: str, moment: Moment, facts: StepFacts) -> list[Violation]:
        run = self._runs.setdefault(owner, _Run())
        run.first = facts.event.step if run.count == 0 else run.first
        run.count += 1
        if run.count > self.skipped:
            return []
        label = self.ledger.holders[owner].label
        beside = f", while its scheduler stepped {run.scheduled} times" if run.scheduled else ""
        run.pending = proof(
            (self.code, Symptom.STEPS_SKIPPED, self.ledger.one_of_several(owner)),
            facts,
            step=run.first,
            subject=Subject(api=Families.SCALER_STEP),
            message=f"GradScaler skips {run.count} steps of {label} in a row{beside}",
            expected=f"scaler.step() lets {label} step",
            observed=f"{run.count} steps in a row were skipped{beside}",
            evidence=(moment.call,),
        )
        return [run.pending] if run.count == self.skipped else []


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
