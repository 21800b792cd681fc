"""Consecutive evaluations have a non-finite loss while training does not."""

from __future__ import annotations

import math

from traincheck.readings.losses import F, loss_needs
from traincheck.rules.base.rule import EventRule
from traincheck.rules.shared.numbers import value_of
from traincheck.schema.events import CallEvent, Event, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.marks import EVAL_STAGE
from traincheck.schema.torch_api import TARGETED, losses

# Without ctc_loss: it is infinite if the target is longer than the input
_LOSSES = TARGETED | losses("distribution")
_IN_A_ROW = 2  # evaluations


class EvaluationNotFinite(EventRule, code="TC716"):
    """evaluation-not-finite: the losses of consecutive evaluations are NaN or infinite.

    What it checks:
        Of two consecutive evaluations with finite training losses between them, at least one has
        finite losses only.

    Why it matters:
        Model selection, early stopping and learning-rate schedules compare this loss. Every
        comparison with NaN is false, so the first model stays the best one forever, or none is.

    Fires on:
        - An inverted attention mask, so that rows have nothing to attend to.
        - Evaluation batches without a valid label.
        - A division by a count that is zero in evaluation.

    Stays quiet on:
        - A single such evaluation.
        - Losses of training (TC701).
        - ctc_loss, which may be infinite.
        - Losses that are not reduced to one number.

    Fix:
        Compare the inputs of evaluation with those of training: masks, labels, and the last,
        shorter batch.

    Source:
        https://github.com/pytorch/pytorch/issues/41508,
        https://github.com/pytorch/pytorch/issues/70348
    """

    title = "The loss is NaN or infinite in evaluation"
    likely_cause = (
        "The inputs of the model or of {subject}{where} in evaluation may leave nothing to "
        "compute: a mask that hides everything, a batch without a valid label, or a count of "
        "zero."
    )
    fix = (
        "Compare the model's inputs in evaluation with those in training: masks, "
        "labels, and the last batch, which may be shorter."
    )
    needs = loss_needs(*sorted(_LOSSES), numbers=False)

    def __init__(self) -> None:
        super().__init__()
        self._broken: CallEvent | None = None  # the first one since the last step ended
        self._has_evaluated = False
        self._first: CallEvent | None = None
        self._count = 0
        self._is_reported = False

    def judge(self, event: Event) -> list[Violation]:
        if isinstance(event, CallEvent):
            self._call(event)
        elif isinstance(event, StepEvent) and self._has_evaluated:
            return self._end()
        return []

    def _call(self, call: CallEvent) -> None:
        value = value_of(call.result) if call.api in _LOSSES else None
        if value is None:
            return
        if call.grad_enabled:
            if math.isnan(value):
                self._count = 0
        elif call.stage == EVAL_STAGE:
            self._has_evaluated = True
            if math.isnan(value) and self._broken is None:
                self._broken = call

    def _end(self) -> list[Violation]:
        self.triggered += 1
        broken, self._broken, self._has_evaluated = self._broken, None, False
        if broken is None:
            self._count = 0
            return []
        self._first = broken if self._count == 0 else self._first
        self._count += 1
        if self._count < _IN_A_ROW or self._is_reported or self._first is None:
            return []
        self._is_reported = True
        return [self._violation(self._first, broken)]

    def _violation(self, first: CallEvent, last: CallEvent) -> Violation:
        name = first.api.removeprefix(F)
        return self.violation(
            first,
            subject=Subject(api=first.api),
            symptom=Symptom.NON_FINITE,
            message=f"{name} is not finite in two consecutive evaluations, but is in training",
            expected="finite losses in evaluations, as in training",
            observed=f"{name} returns NaN or infinity",
            evidence=(first, last),
        )
