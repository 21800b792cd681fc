"""Metrics that accumulate over batches: in which phases they are updated between two resets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from traincheck.schema.observations.base import Observation


@dataclass(frozen=True, slots=True)
class MetricUse(Observation):
    """A metric of torchmetrics was computed: the first time, and where it may be wrong.

    Attributes:
        metric: `metric0`, in the order of first use.
        cls: its class.
        training: number of updates in training since the last reset.
        evaluation: the same in evaluation.
        computed: number of evaluations at other steps that ended with a compute since the last
            reset, this one excepted.
        training_where: the line of the first of the updates in training.
        evaluation_where: the line of the first of those in evaluation.
        where: the line that called compute.
    """

    text: ClassVar[str] = "metric computed"
    instrument: ClassVar[str] = "modules"

    metric: str
    cls: str
    training: int
    evaluation: int
    computed: int = 0
    training_where: str | None = None
    evaluation_where: str | None = None
    where: str | None = None
