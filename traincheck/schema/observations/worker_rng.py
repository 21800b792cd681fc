"""Random generators of DataLoader workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from traincheck.schema.observations.base import Observation


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
