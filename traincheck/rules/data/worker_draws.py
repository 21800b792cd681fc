"""Random generators of DataLoader workers, and which of them draw the same numbers."""

from __future__ import annotations

from typing import NamedTuple

from traincheck.readings.provider import RunState, RunStates
from traincheck.rules.base.rule import fresh
from traincheck.rules.shared.loaders import (
    BATCHES,
    DATA_LOADER,
    Loader,
    LoaderRule,
    TrainingLoaders,
)
from traincheck.schema.events import BatchEvent, Event, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
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


class WorkerBook(RunState):
    """Workers of training loaders.

    Attributes:
        ready: at the end of a step, those of which it is known by now that they feed training.
    """

    uses = (TrainingLoaders,)
    reads = WORKERS

    def __init__(self) -> None:
        self.ready: list[Worker] = []
        self._waiting: list[Worker] = []
        self._first: dict[tuple[int, str, int], int | None] = {}  # step of an epoch's first batch

    def bind(self, run_states: RunStates) -> None:
        self._training = run_states.of(TrainingLoaders)

    def observe(self, event: Event) -> None:
        self.ready = []
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
            self.ready = sorted(ready, key=lambda w: (w.rank, w.loader, w.epoch, w.number))

    def step(self, worker: Worker) -> int | None:
        """The step with the first batch of the worker's epoch."""
        return self._first.get((worker.rank, worker.loader, worker.epoch))

    def _is_ready(self, worker: Worker) -> bool:
        loader: Loader = (worker.rank, worker.loader)
        return loader in self._training and (*loader, worker.epoch) in self._first


class WorkerRule(LoaderRule):
    """A rule about the random numbers of workers, which are processes."""

    uses = (TrainingLoaders, WorkerBook)
    needs = WORKERS
    scope = "run"

    def bind(self, run_states: RunStates) -> None:
        super().bind(run_states)
        self._book = run_states.of(WorkerBook)


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


class WorkersRepeatRandomDraws(
    WorkerRule, code="TC504", severity="error", aliases=("workers-draw-the-same",)
):
    """workers-repeat-random-draws: workers use random generators in the same state.

    What it checks:
        Generators from which a training dataset draws start in a different state in each worker.
        These are the global generators of Python, NumPy and torch, and those owned by the dataset
        or its transforms.

    Why it matters:
        Every worker applies the same sequence of random crops, flips or choices. Only a fraction of
        the intended augmentation takes place.

    Fires on:
        - A numpy.random.Generator, random.Random or torch.Generator stored in the dataset, of which
          each worker gets a copy.
        - A worker_init_fn that seeds each worker with the same number.

    Stays quiet on:
        - Generators that workers do not draw from.
        - Datasets seeded by worker_init_fn or by index.
        - Iterable datasets, whose workers may need a common order.
        - Evaluation.

    Fix:
        Seed by worker: worker_init_fn=lambda i: dataset.reseed(torch.initial_seed() % 2**32).

    Source:
        https://tanelp.github.io/posts/a-bug-that-plagues-thousands-of-open-source-ml-projects/, https://github.com/pytorch/pytorch/issues/5059
    """

    title = "Workers of {variables} draw the same random numbers"
    likely_cause = (
        "{observed}. Each worker of {variables} is a copy of the dataset, with the generator in "
        "the state in which it was when the workers started."
    )
    fix = (
        "Seed the dataset's own generator in worker_init_fn from torch.initial_seed(), or create "
        "it from get_worker_info().seed at first use."
    )
    _seen: dict[tuple[int, str, int], dict[tuple[str, str, str], Worker]] = fresh(dict)

    def observe(self, event: Event) -> list[Violation]:
        found = []
        for worker in self._book.ready if isinstance(event, StepEvent) else ():
            key = (worker.rank, worker.loader, worker.epoch)
            if key not in self._seen:
                self._seen.clear()
            seen = self._seen.setdefault(key, {})
            self.triggered += 1
            for name, states in worker.drawn.items():
                other = seen.setdefault((name, *states), worker)
                source = (worker.rank, worker.loader, name)
                if (
                    other is not worker
                    and other.number != worker.number
                    and source not in self.reported
                ):
                    self.reported.add(source)
                    observed = (
                        f"workers {other.number} and {worker.number} start with the same state of "
                        f"{described(name)}"
                    )
                    found += self.found(
                        worker.event,
                        step=self._book.step(worker),
                        rank=worker.rank,
                        stage="train",
                        subject=Subject(api=DATA_LOADER, variable=worker.loader),
                        symptom=Symptom.REPEATED_DATA,
                        message=f"workers {other.number} and {worker.number} of {worker.loader} "
                        f"draw the same random numbers from {described(name)}",
                        expected="each worker draws its own numbers",
                        observed=observed,
                        evidence=(other.event, worker.event),
                    )
        return found


class EpochsRepeatRandomDraws(WorkerRule, code="TC505", aliases=("epochs-draw-the-same",)):
    """epochs-repeat-random-draws: workers start each epoch with the same random numbers.

    What it checks:
        Generators from which a training dataset draws in workers start each epoch in another state.

    Why it matters:
        Augmentation is drawn once and repeated in every epoch. The model sees one fixed, distorted
        copy of the data.

    Fires on:
        - A worker_init_fn that seeds with the worker id alone.
        - A global seed that is reset before each epoch.
        - A generator stored in the dataset of the main process, of which each epoch gets a fresh
          copy.

    Stays quiet on:
        - Seeds that depend on torch.initial_seed() or the epoch.
        - Persistent workers.
        - Generators that are not drawn from.
        - Evaluation.
        - Cases that TC504 reports.

    Fix:
        Use torch.initial_seed(), which differs between epochs, wherever workers are seeded.

    Source:
        https://github.com/Lightning-AI/pytorch-lightning/issues/20412, https://github.com/xingyizhou/CenterNet/issues/233
    """

    title = "Random augmentation by {variables} repeats from epoch to epoch"
    likely_cause = (
        "{observed}. The workers of {variables} may be seeded with numbers that do not depend "
        "on the epoch."
    )
    fix = "Seed workers from torch.initial_seed(), and do not reset the global seed in each epoch."
    _last: dict[tuple[int, str, int], Worker] = fresh(dict)

    def observe(self, event: Event) -> list[Violation]:
        found = []
        for worker in self._book.ready if isinstance(event, StepEvent) else ():
            key = (worker.rank, worker.loader, worker.number)
            before = self._last.get(key)
            self._last[key] = worker
            if before is None or before.epoch == worker.epoch:
                continue
            self.triggered += 1
            # Whether another worker draws the same numbers, which TC504 reports.
            same = [
                name
                for name, states in worker.drawn.items()
                if before.drawn.get(name) == states
                and not any(
                    other.drawn.get(name) == worker.drawn[name]
                    for (rank, loader, number), other in self._last.items()
                    if (rank, loader) == (worker.rank, worker.loader) and number != worker.number
                )
            ]
            if same and key[:2] not in self.reported:
                self.reported.add(key[:2])
                generator = same[0]
                observed = (
                    f"worker {worker.number} starts with the same state of {described(generator)} "
                    f"in epochs {before.epoch} and {worker.epoch}"
                )
                found += self.found(
                    worker.event,
                    step=self._book.step(worker),
                    rank=worker.rank,
                    stage="train",
                    subject=Subject(api=DATA_LOADER, variable=worker.loader),
                    symptom=Symptom.REPEATED_DATA,
                    message=f"in epochs {before.epoch} and {worker.epoch}, worker {worker.number} "
                    f"of {worker.loader} draws the same random numbers from {described(generator)}",
                    expected="each epoch draws its own numbers",
                    observed=observed,
                    evidence=(before.event, worker.event),
                )
        return found
