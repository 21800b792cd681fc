"""Reads of a data set, the random generators of workers, and the samples of a metric."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from traincheck.schema.observations.base import Observation


@dataclass(frozen=True, slots=True)
class EpochOrder(Observation):
    """A sampler gave the first indices of an epoch; written after its first batch of training.

    Attributes:
        loader: its name, as of batches.
        drawn: the generators whose states changed meanwhile: `torch`, `python`, `numpy`, or those
            that the sampler owns. `shuffle` if a DistributedSampler is to shuffle.
    """

    text: ClassVar[str] = "epoch order"
    instrument: ClassVar[str] = "data"

    loader: str
    drawn: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DatasetReads(Observation):
    """Some samples of a map-style dataset were fetched again, in a later epoch.

    Fetches are left out that draw random numbers. Nothing is recorded of datasets whose plain
    attributes have changed since the earlier epoch.

    Attributes:
        cls: class of the dataset.
        epoch: passes of this process over the dataset before this one, up to a few.
        compared: samples that were also read in an earlier epoch.
        differing: how many of these have other values now.
        watched: stored items that were compared before and after the fetch that reads them.
        written: how many of these have other values after it.
        returned: how many of the written ones are the sample, or a part of it, and had data before
            that were not all equal.
        attribute: where the first written one is stored.
    """

    text: ClassVar[str] = "dataset reads"
    instrument: ClassVar[str] = "data"

    cls: str
    epoch: int
    compared: int
    differing: int
    watched: int = 0
    written: int = 0
    returned: int = 0
    attribute: str = ""


@dataclass(frozen=True, slots=True)
class WorkerRng(Observation):
    """A DataLoader worker has fetched its first batch.

    Attributes:
        worker: its number.
        workers: how many there are.
        seed: the base seed of the loader.
        loader: name of the loader, where it is known.
        epoch: of the loader.
        start: digests of the states of its random generators when it started, by name.
        after: the same after its first batch.
    """

    text: ClassVar[str] = "worker"
    instrument: ClassVar[str] = "data"
    sparse: ClassVar[frozenset[str]] = frozenset({"loader", "epoch"})

    worker: int
    workers: int = 0
    seed: str = ""
    loader: str | None = None
    epoch: int | None = None
    start: Mapping[str, str] = field(default_factory=dict)
    after: Mapping[str, str] = field(default_factory=dict)


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
