"""Losses of evaluation that rise, or are not finite."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from traincheck.readings import recorded
from traincheck.readings.losses import F, loss_needs
from traincheck.rules.base.rule import BuiltInRule, EventRule, fresh
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.marks import EVAL_STAGE
from traincheck.schema.torch_api import HUBER, TARGETED, losses

_FITTED_LOSSES = TARGETED - {HUBER}
_FEWEST = 6  # evaluations


class Overfitting(BuiltInRule, code="TC712", severity="info"):
    """overfitting: evaluation gets worse each time while training improves.

    What it checks:
        The mean loss of the evaluations follows that of the training between them.

    Why it matters:
        After its best evaluation, the model only memorizes its training data.

    Fires on:
        - Four consecutive evaluations (from the sixth on), each worse than the one before, while
          the training loss fell each time. The last is worse than the best by more than 10 %.

    Stays quiet on:
        - Evaluations that fluctuate.
        - Other losses in evaluation than in training.
        - A loss that is unknown.

    Fix:
        Stop at the best evaluation. Use more data, augmentation, weight decay or dropout.

    Options:
        worse: consecutive evaluations.
        margin: share of the best evaluation's loss.

    Source:
        https://docs.aws.amazon.com/sagemaker/latest/dg/debugger-built-in-rules.html
    """

    title = "The model overfits: evaluation has got worse since step {step}"
    likely_cause = "{observed}."
    fix = "Stop at the best evaluation; more data, augmentation, weight decay or dropout help."
    needs = Needs(calls=_FITTED_LOSSES, kinds=frozenset({"step"}))
    worse: int = 4
    margin: float = 0.1
    _series: dict[str, _Series] = fresh(dict)

    def observe(self, event: Event) -> Sequence[Violation]:
        if self.is_over or isinstance(event, StepEvent) or not isinstance(event, CallEvent):
            return ()
        value = recorded.value_of(event.result)
        if value is None or not math.isfinite(value):
            return ()
        series = self._series.setdefault(event.api, _Series())
        if not event.grad_enabled:
            series.evaluation.add(value)
            series.step = event.step
            return ()
        found = self._close(series, event) if series.evaluation.count else ()
        series.train.add(value)
        return found

    def _close(self, series: _Series, event: CallEvent) -> Sequence[Violation]:
        if series.train.count:
            point = (series.step, series.train.value, series.evaluation.value)
            series.past = [*series.past[-64:], point]
        series.train, series.evaluation = _Mean(), _Mean()
        past = series.past
        if len(past) < _FEWEST:
            return ()
        self.triggered += 1
        last = past[-self.worse - 1 :]
        pairs = list(itertools.pairwise(last))
        best = min(past, key=lambda point: point[2])
        rises = all(after[2] > before[2] > 0 for before, after in pairs)
        falls = all(after[1] < before[1] for before, after in pairs)
        if not (rises and falls and past[-1][2] > (1 + self.margin) * best[2]):
            return ()
        self.is_over = True
        return self.found(
            event,
            step=best[0],
            stage="eval",
            subject=Subject(api=event.api),
            symptom=Symptom.NOT_LEARNING,
            message="evaluation gets worse while the training loss falls",
            expected="an evaluation loss that follows the training loss",
            observed=f"the evaluation loss rose from {best[2]:.4g} to {past[-1][2]:.4g} since step "
            f"{best[0]}, while the training loss fell to {past[-1][1]:.4g}",
        )


@dataclass(slots=True)
class _Mean:
    total: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        self.total += value
        self.count += 1

    @property
    def value(self) -> float:
        return self.total / self.count


@dataclass(slots=True)
class _Series:
    """One loss function: training since the last evaluation, and the current evaluation."""

    train: _Mean = field(default_factory=_Mean)
    evaluation: _Mean = field(default_factory=_Mean)
    step: int | None = None
    past: list[tuple[int | None, float, float]] = field(default_factory=list)


# Without ctc_loss: it is infinite if the target is longer than the input
_EVALUATED_LOSSES = TARGETED | losses("distribution")
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
    needs = loss_needs(*sorted(_EVALUATED_LOSSES), numbers=False)
    _broken: CallEvent | None = None  # the first one since the last step ended
    _has_evaluated = False
    _first: CallEvent | None = None
    _count = 0

    def judge(self, event: Event) -> list[Violation]:
        if isinstance(event, CallEvent):
            value = recorded.value_of(event.result) if event.api in _EVALUATED_LOSSES else None
            if value is None:
                return []
            if event.grad_enabled:
                if math.isnan(value):
                    self._count = 0
            elif event.stage == EVAL_STAGE:
                self._has_evaluated = True
                if math.isnan(value) and self._broken is None:
                    self._broken = event
        elif isinstance(event, StepEvent) and self._has_evaluated:
            self.triggered += 1
            broken, self._broken, self._has_evaluated = self._broken, None, False
            if broken is None:
                self._count = 0
                return []
            self._first = broken if self._count == 0 else self._first
            self._count += 1
            if self._count < _IN_A_ROW or self.is_over or self._first is None:
                return []
            self.is_over = True
            first = self._first
            name = first.api.removeprefix(F)
            return self.found(
                first,
                subject=Subject(api=first.api),
                symptom=Symptom.NON_FINITE,
                message=f"{name} is not finite in two consecutive evaluations, but is in training",
                expected="finite losses in evaluations, as in training",
                observed=f"{name} returns NaN or infinity",
                evidence=(first, broken),
            )
        return []
