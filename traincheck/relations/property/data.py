"""Properties of metrics and datasets."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from traincheck.relations.property.base import MANY, EventReader, Property, Reading
from traincheck.schema.events import Event
from traincheck.schema.findings import Subject, Symptom
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.data import DatasetReads, MetricUse
from traincheck.schema.observations.reading import observed

_SAME, _CHANGED = "same", "changed"
_TRAINING, _EVALUATION, _BOTH = "training", "evaluation", "both"


def _phases(event: Event) -> Iterable[Reading]:
    found = observed(event, MetricUse)
    if found is None or not found.training + found.evaluation:
        return
    value = _BOTH if found.training and found.evaluation else _TRAINING
    value = value if found.training else _EVALUATION
    name = f"{found.metric} ({found.cls.rpartition('.')[2]})"
    seen = (
        f"the metric was computed over {found.training} updates in training and "
        f"{found.evaluation} in evaluation"
    )
    at = Subject(api=found.cls)
    yield Reading(of=name, value=value, seen=seen, at=at, event=event, weight=MANY)


def _reads(event: Event) -> Iterable[Reading]:
    found = observed(event, DatasetReads)
    if found is None or not found.compared:
        return
    name = found.cls.rpartition(".")[2]
    value = _CHANGED if found.differing else _SAME
    seen = f"{found.differing} of {found.compared} samples differ from an earlier epoch"
    if found.written:
        seen += f"; reading a sample writes to {found.attribute or 'the dataset'}"
    at = Subject(api=found.cls)
    yield Reading(of=name, value=value, seen=seen, at=at, event=event, weight=MANY)


METRIC_PHASES = Property(
    name="metric_phases",
    needs=needs_of(MetricUse),
    reader=partial(EventReader, _phases),
    claims={
        _TRAINING: "metric {of} is computed over samples of training only",
        _EVALUATION: "metric {of} is computed over samples of evaluation only",
    },
    headline="A metric is now computed over samples of two phases",
    cause="One metric object may be updated in both phases, or not be reset between them.",
    fix="Create one metric object for each phase, or call metric.reset() between them.",
)
DATASET_READS = Property(
    name="dataset_reads",
    needs=needs_of(DatasetReads),
    reader=partial(EventReader, _reads),
    claims={_SAME: "a sample of dataset {of} has the same values in each epoch"},
    headline="A sample of the dataset now has other values in each epoch",
    cause=(
        "__getitem__ may write to the stored data in place, or draw from an unrecorded generator."
    ),
    fix="Copy the item before changing it: self.data[index].clone().",
    symptom=Symptom.OVERWRITTEN,
)
