"""The evaluation loss rises while the training loss falls. Advice only."""

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
    needs = Needs(calls=_LOSSES, kinds=frozenset({"step"}))

    def __init__(self, worse: int = 4, margin: float = 0.1) -> None:
        super().__init__()
        self.worse = worse
        self.margin = margin
        self._series: dict[str, _Series] = {}
        self._is_reported = False

    def observe(self, event: Event) -> Sequence[Violation]:
        if self._is_reported or isinstance(event, StepEvent) or not isinstance(event, CallEvent):
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
        self._is_reported = True
        return [
            Violation(
                check_id=self.code,
                step=best[0],
                rank=event.rank,
                stage="eval",
                subject=Subject(api=event.api),
                symptom=Symptom.NOT_LEARNING,
                message="evaluation gets worse while the training loss falls",
                expected="an evaluation loss that follows the training loss",
                observed=(
                    f"the evaluation loss rose from {best[2]:.4g} to {past[-1][2]:.4g} since "
                    f"step {best[0]}, while the training loss fell to {past[-1][1]:.4g}"
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
    """One loss function: training since the last evaluation, and the current evaluation."""

    train: _Mean = field(default_factory=_Mean)
    evaluation: _Mean = field(default_factory=_Mean)
    step: int | None = None
    past: list[tuple[int | None, float, float]] = field(default_factory=list)
