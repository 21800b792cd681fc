"""Random generators of DataLoader workers, and which of them draw the same numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from traincheck.rules.shared.loaders import BATCHES, Loader, TrainingLoaders
from traincheck.schema.apis import Marks
from traincheck.schema.claims import Needs
from traincheck.schema.events import BatchEvent, Event, MarkEvent, StepEvent

WORKERS = BATCHES | Needs(kinds=frozenset({"mark"}))
_MAX_EPOCHS = 64


class Worker(NamedTuple):
    """The record of one worker. drawn: generator -> states before and after its first batch."""

    rank: int
    loader: str
    epoch: int
    number: int
    drawn: dict[str, tuple[str, str]]
    event: MarkEvent


class WorkerBook:
    """Workers of training loaders, returned once it is known that the loader feeds training."""

    def __init__(self) -> None:
        self._training = TrainingLoaders()
        self._waiting: list[Worker] = []
        self._first: dict[tuple[int, str, int], int | None] = {}  # step of an epoch's first batch

    def observe(self, event: Event) -> Iterator[Worker]:
        """Add an event; yield the workers that can be judged, at the end of a step."""
        self._training.observe(event)
        if isinstance(event, MarkEvent) and event.text == Marks.WORKER:
            worker = _worker(event)
            if worker is not None:
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


def _worker(mark: MarkEvent) -> Worker | None:
    data = mark.data
    start, after = data.get("start"), data.get("after")
    if not isinstance(start, dict) or not isinstance(after, dict) or "loader" not in data:
        return None
    drawn = {
        name: (start[name], after[name])
        for name in start
        if name in after and start[name] != after[name]
    }
    return Worker(mark.rank, data["loader"], data["epoch"], data["worker"], drawn, mark)


def described(generator: str) -> str:
    """The name of a generator in a message."""
    globals_ = {
        "python": "the global generator of Python's random",
        "numpy": "the global generator of NumPy",
        "torch": "the global generator of torch",
    }
    return globals_.get(generator, f"the generator {generator}")
