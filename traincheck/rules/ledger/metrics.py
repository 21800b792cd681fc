"""Metrics that mix two phases, or are never reset."""

from __future__ import annotations

from collections.abc import Sequence

from traincheck.rules.base.rule import EventRule
from traincheck.rules.base.step_rule import line
from traincheck.schema.events import Event
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.data import MetricUse
from traincheck.schema.observations.reading import observed

# Counters and extremes, which may be those of the whole program
_OF_ALL = ("SumMetric", "MaxMetric", "MinMetric")


class MetricForTwoPhases(EventRule, code="TC070"):
    """metric-for-two-phases: a metric is computed over training and evaluation samples.

    What it checks:
        Between two resets, a metric of torchmetrics is updated either in training or in evaluation.

    Why it matters:
        The value of the evaluation contains training samples. The best checkpoint, early stopping
        and the published number all follow it.

    Fires on:
        - One metric of a LightningModule that training_step and validation_step both update.
        - A metric that is not reset before the evaluation.

    Stays quiet on:
        - One metric object with a reset between the phases.
        - One metric object for each phase.
        - SumMetric, MaxMetric and MinMetric, which may count over the whole run.
        - Metrics that are never computed while both are in them.

    Fix:
        Create one metric object for each phase, such as metric.clone(prefix="val_").

    Source:
        https://github.com/Lightning-AI/torchmetrics/issues/1450, https://github.com/Lightning-AI/pytorch-lightning/issues/11601
    """

    title = "A metric is computed over training and evaluation samples"
    likely_cause = (
        "One metric object may be updated in both phases, or not be reset before the evaluation."
    )
    fix = "Create one metric object for each phase, or call metric.reset() before the evaluation."
    needs = needs_of(MetricUse)

    def judge(self, event: Event) -> Sequence[Violation]:
        found = observed(event, MetricUse)
        if found is None:
            return ()
        self.triggered += 1
        name = found.cls.rpartition(".")[2]
        is_mixed = found.training and found.evaluation and name not in _OF_ALL
        if not is_mixed or found.metric in self.reported:
            return ()
        self.reported.add(found.metric)
        observed_text = (
            f"{name} ({found.metric}) is computed{line(found.where)} after {found.training} updates"
            f" in training{line(found.training_where)} and {found.evaluation} in evaluation"
            f"{line(found.evaluation_where)}, without a reset in between"
        )
        violation = self.violation(
            event,
            subject=Subject(api=found.cls, variable=found.metric),
            symptom=Symptom.WRONG_VALUE,
            message=f"{name} contains samples of training and of evaluation",
            expected="a metric contains samples of one phase",
            observed=observed_text,
        )
        return [violation]


_NEVER_RESET = ("SumMetric", "MaxMetric", "MinMetric", "Running", "RunningMean", "RunningSum")


class MetricNeverReset(EventRule, code="TC071"):
    """metric-never-reset: a metric of the evaluation goes on from the last evaluation.

    What it checks:
        A metric of torchmetrics that was computed in one evaluation is reset before the next one.

    Why it matters:
        The value is the mean over all evaluations so far. It changes ever more slowly, and the best
        epoch cannot be told.

    Fires on:
        compute() in two evaluations at different steps, with updates in both and no reset().

    Stays quiet on:
        - Metrics that are reset after compute() or before the evaluation.
        - Metrics that self.log() of Lightning resets.
        - compute() several times within one evaluation.
        - Metrics of training, and running ones.

    Fix:
        Call metric.reset() after metric.compute().

    Source:
        https://lightning.ai/docs/torchmetrics/stable/pages/overview.html
    """

    title = "A metric of the evaluation is never reset"
    likely_cause = (
        "metric.reset() is never called between evaluations, so compute(){where} goes on from the "
        "last one."
    )
    fix = "Call metric.reset() after metric.compute(), or before each evaluation."
    needs = needs_of(MetricUse)

    def judge(self, event: Event) -> Sequence[Violation]:
        found = observed(event, MetricUse)
        if found is None or not found.evaluation:
            return ()
        self.triggered += 1
        name = found.cls.rpartition(".")[2]
        is_mixed = found.training > 0  # which TC070 reports
        if is_mixed or not found.computed or name in _NEVER_RESET or found.metric in self.reported:
            return ()
        self.reported.add(found.metric)
        observed_text = (
            f"{name} ({found.metric}) is computed{line(found.where)} over {found.evaluation} "
            f"updates{line(found.evaluation_where)} of {found.computed + 1} evaluations"
        )
        violation = self.violation(
            event,
            subject=Subject(api=found.cls, variable=found.metric),
            symptom=Symptom.WRONG_VALUE,
            message=f"{name} contains samples of earlier evaluations",
            expected="a metric contains samples of one evaluation",
            observed=observed_text,
        )
        return [violation]
