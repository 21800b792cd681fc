"""How a loader draws its order, and what reading a dataset does to its samples."""

from __future__ import annotations

from dataclasses import dataclass
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
