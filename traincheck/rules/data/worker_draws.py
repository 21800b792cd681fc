"""Random generators of DataLoader workers, and which of them draw the same numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from traincheck.rules.shared.loaders import BATCHES, Loader, TrainingLoaders
from traincheck.schema.events import BatchEvent, Event, StepEvent
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.data import WorkerRng
from traincheck.schema.observations.reading import observed

WORKERS = BATCHES | needs_of(WorkerRng)
_MAX_EPOCHS = 64


class Worker(NamedTuple):
    """The record of one worker. drawn: generator -> states before and after its first batch."""

    rank: int
    loader: str
    epoch: int
    number: int
    drawn: dict[str, tuple[str, str]]
    event: Event


class WorkerBook:
    """Workers of training loaders, returned once it is known that the loader feeds training."""

    def __init__(self) -> None:
        self._training = TrainingLoaders()
        self._waiting: list[Worker] = []
        self._first: dict[tuple[int, str, int], int | None] = {}  # step of an epoch's first batch

    def observe(self, event: Event) -> Iterator[Worker]:
        """Add an event; yield the workers that can be judged, at the end of a step."""
        self._training.observe(event)
        if (worker := _worker(event)) is not None:
            self._waiting.append(worker)
        elif isinstance(event, BatchEvent):
            key = (event.rank, event.loader, event.epoch)
            self._first.setdefault(key, event.step)
            if len(self._first) > _MAX_EPOCHS:
                del self._first[next(iter(self._first))]
        elif isinstance(event, StepEvent) and self._waiting:
            ready = [w for w in self._waiting if self._is_ready(w)]
            self._waiting = [w for w in self._waiting if w not in ready][-_MAX_EPOCHS:]
            yield from sorted(ready, key=lambda w: (w.rank, w.loader, w.epoch, w.number))

    def step(self, worker: Worker) -> int | None:
        """The step with the first batch of the worker's epoch."""
        return self._first.get((worker.rank, worker.loader, worker.epoch))

    def _is_ready(self, worker: Worker) -> bool:
        loader: Loader = (worker.rank, worker.loader)
        return loader in self._training and (*loader, worker.epoch) in self._first


def _worker(event: Event) -> Worker | None:
    found = observed(event, WorkerRng)
    if found is None or found.loader is None or found.epoch is None:
        return None
    drawn = {
        name: (state, found.after[name])
        for name, state in found.start.items()
        if found.after.get(name, state) != state
    }
    return Worker(event.rank, found.loader, found.epoch, found.worker, drawn, event)


def described(generator: str) -> str:
    """The name of a generator in a message."""
    globals_ = {
        "python": "the global generator of Python's random",
        "numpy": "the global generator of NumPy",
        "torch": "the global generator of torch",
    }
    return globals_.get(generator, f"the generator {generator}")
