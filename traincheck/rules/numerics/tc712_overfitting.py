"""The loss of evaluation rises while that of training falls. Advice only."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from traincheck.rules.base.rule import BuiltInRule
from traincheck.rules.shared.numbers import value_of
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import HUBER, TARGETED

_LOSSES = TARGETED - {HUBER}
_FEWEST = 6  # evaluations


class Overfitting(BuiltInRule, code="TC712", severity="info"):
    """overfitting: evaluation gets worse, evaluation after evaluation, as training improves.

    What it checks:
        The mean loss of the evaluations follows that of the training between them.

    Why it matters:
        From its best evaluation on, the model only learns its training data by heart.

    Fires on:
        Four evaluations in a row that are each worse than the one before, the last by more than
        10 % worse than the best, while the training loss fell each time. From the sixth on.

    Stays quiet on:
        Evaluations that go up and down; other losses in evaluation than in training; a loss that
        cannot be read.

    Fix:
        Stop at the best evaluation; use more data, augmentation, weight decay or dropout.

    Options:
        worse: evaluations in a row.
        margin: share of the best evaluation's loss.

    Source:
        https://docs.aws.amazon.com/sagemaker/latest/dg/debugger-built-in-rules.html
    """

    title = "The model overfits: evaluation has become worse since step {step}"
    likely_cause = "{observed}."
    fix = "Stop at the best evaluation; more data, augmentation, weight decay or dropout help."
    needs = Needs(calls=_LOSSES, kinds=frozenset({"step"}))

    def __init__(self, worse: int = 4, margin: float = 0.1) -> None:
        super().__init__()
        self.worse = worse
        self.margin = margin
        self._series: dict[str, _Series] = {}
        self._is_told = False

    def observe(self, event: Event) -> Sequence[Violation]:
        if self._is_told or isinstance(event, StepEvent) or not isinstance(event, CallEvent):
            return ()
        value = value_of(event.result)
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
        self._is_told = True
        return [
            Violation(
                check_id=self.code,
                step=best[0],
                rank=event.rank,
                stage="eval",
                subject=Subject(api=event.api),
                symptom=Symptom.NOT_LEARNING,
                message="evaluation becomes worse while the training loss falls",
                expected="a loss in evaluation that follows that in training",
                observed=(
                    f"the loss in evaluation rose from {best[2]:.4g} to {past[-1][2]:.4g} since "
                    f"step {best[0]}, that in training fell to {past[-1][1]:.4g}"
                ),
                evidence=(event,),
            )
        ]


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
    """Of one loss function: training since the last evaluation, and the evaluation under way."""

    train: _Mean = field(default_factory=_Mean)
    evaluation: _Mean = field(default_factory=_Mean)
    step: int | None = None
    past: list[tuple[int | None, float, float]] = field(default_factory=list)
