"""ReduceLROnPlateau reduces the rate because its metric improves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from traincheck.readings.resumptions import brings_back
from traincheck.rules.base.rule import EventRule, fresh
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, CheckpointEvent, Event, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families
from traincheck.schema.values import number

_PLATEAU = "torch.optim.lr_scheduler.ReduceLROnPlateau.step"
_CLEAR = 0.01  # relative: far above the threshold at which a scheduler counts a metric as better
_SHOWN = 4  # metrics
_IMPROVED = 3  # times
_MOST_SAMPLES = 5000
_EXACT = 2e-7  # of a fraction in single precision
_PERCENT = 100


class PlateauModeMismatch(EventRule, code="TC220", aliases=("plateau-of-the-wrong-kind",)):
    """plateau-mode-mismatch: the rate is reduced each time that the metric improves.

    What it checks:
        ReduceLROnPlateau does not reduce the rate when a loss is the lowest so far, or an accuracy
        the highest.

    Why it matters:
        The scheduler's mode is "min" by default. Given an accuracy, it treats each improvement as a
        bad epoch, and the rate vanishes long before training ends.

    Fires on:
        - A metric that falls (clearly the lowest so far three times, never clearly the highest),
          and a rate that is reduced at one of these values.
        - A fraction of samples that rises in the same way, and a rate that is reduced at one of
          these values.

    Stays quiet on:
        - Rates that are reduced when a metric stagnates or gets worse.
        - Falling fractions, which may be errors or accuracies.
        - Metrics that change by less than one percent.
        - Optimizers with another scheduler beside it.
        - Steps after a checkpoint was loaded.

    Fix:
        Use ReduceLROnPlateau(optimizer, mode="max") for a metric that should rise, mode="min" for a
        loss.

    Source:
        https://docs.pytorch.org/docs/stable/generated/torch.optim.lr_scheduler.ReduceLROnPlateau.html
    """

    title = "ReduceLROnPlateau reduces the rate as its metric improves"
    likely_cause = "mode does not fit the metric{where}: {observed}."
    fix = 'Build the scheduler with mode="max" for an accuracy, with mode="min" for a loss.'
    needs = Needs(
        calls=frozenset({Families.SCHEDULER_STEP, Families.OPTIMIZER_STEP}),
        kinds=frozenset({"checkpoint", "step"}),
    )
    _courses: defaultdict[tuple[int, str], _Course] = fresh(lambda: defaultdict(_Course))

    def judge(self, event: Event) -> list[Violation]:
        if isinstance(event, CallEvent) and event.family == Families.SCHEDULER_STEP:
            course = self._courses[event.rank, str(event.owner)]
            given: Any = event.args.get("0", event.args.get("metrics"))
            metric = number(given)
            course.is_over |= event.api != _PLATEAU or metric is None or metric <= 0
            if metric is not None and not course.is_over:
                course.enter(event, metric)
        elif isinstance(event, CallEvent) and event.family == Families.OPTIMIZER_STEP:
            self._courses[event.rank, str(event.owner)].update()
        elif isinstance(event, CheckpointEvent) and brings_back(event):
            for course in self._courses.values():  # the checkpoint may have a better metric
                course.is_over = True
        elif isinstance(event, StepEvent):
            return [
                found
                for owner, rates in event.lr.items()
                if rates
                for found in self._compare(self._courses[event.rank, owner], event, rates[0])
            ]
        return []

    def _compare(self, course: _Course, event: StepEvent, rate: float) -> Iterator[Violation]:
        if course.is_over or not course.move(rate):
            return
        self.triggered += 1
        if course.is_wrong and course.reduced is not None:
            course.is_over = True
            shown = ", ".join(f"{metric:.4g}" for metric in course.metrics[-_SHOWN:])
            rises = course.metrics[-1] > course.metrics[0]
            word, mode = ("rises", "max") if rises else ("falls", "min")
            yield self.violation(
                course.reduced,
                stage="train",
                subject=Subject(api=Families.SCHEDULER_STEP),
                symptom=Symptom.SCHEDULE,
                message=f"the rate of {course.reduced.owner} is reduced while the metric {word} "
                f"({shown})",
                expected=f'mode="{mode}" for a metric that improves as it {word}',
                observed=f"the metric {word} ({shown}), but the rate is reduced",
            )


@dataclass(slots=True)
class _Course:
    """One optimizer: its metrics, those that were clearly the lowest or highest, and its rate.

    Attributes:
        waiting: calls, at such metrics or not, whose effect is not known yet.
        reduced: the first call at such a metric that reduced the rate.
    """

    metrics: list[float] = field(default_factory=list)
    lows: int = 0
    highs: int = 0
    rate: float | None = None
    waiting: list[tuple[CallEvent, bool]] = field(default_factory=list)
    applied: int = 0
    reduced: CallEvent | None = None
    is_over: bool = False

    def enter(self, call: CallEvent, metric: float) -> None:
        """Note a metric given to the scheduler."""
        is_low = bool(self.metrics) and metric < min(self.metrics) * (1 - _CLEAR)
        is_high = bool(self.metrics) and metric > max(self.metrics) * (1 + _CLEAR)
        self.lows += is_low
        self.highs += is_high
        self.waiting.append((call, is_low or is_high))
        self.metrics.append(metric)

    def update(self) -> None:
        """Note an optimizer step, which uses the rate set by the previous calls."""
        self.applied = len(self.waiting)

    def move(self, rate: float) -> bool:
        """Note the rate at the end of a step. Return whether it shows the effect of a call."""
        before, self.rate = self.rate, rate
        known, self.waiting = self.waiting[: self.applied], self.waiting[self.applied :]
        self.applied = 0
        if known and before is not None and rate < before and known[-1][1]:
            self.reduced = self.reduced or known[-1][0]
        return bool(known)

    @property
    def is_wrong(self) -> bool:
        """Whether the metric only improved, and the rate was reduced for that."""
        if self.reduced is None or max(self.lows, self.highs) < _IMPROVED:
            return False
        if min(self.lows, self.highs):
            return False
        # Whether all can be accuracies or percentages over the same number of samples.
        scale = _PERCENT if max(self.metrics) > 1 else 1
        shares = [metric / scale for metric in self.metrics]
        return bool(self.highs) == (
            max(shares) <= 1
            and any(
                all(abs(share * count - round(share * count)) <= _EXACT * count for share in shares)
                for count in range(1, _MOST_SAMPLES)
            )
        )
