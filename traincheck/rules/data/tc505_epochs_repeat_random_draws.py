"""Random augmentation is the same in every epoch."""

from __future__ import annotations

from traincheck.rules.base.rule import BuiltInRule
from traincheck.rules.data.worker_draws import WORKERS, Worker, WorkerBook, described
from traincheck.rules.shared.loaders import DATA_LOADER
from traincheck.schema.events import Event
from traincheck.schema.findings import Subject, Symptom, Violation


class EpochsRepeatRandomDraws(BuiltInRule, code="TC505", aliases=("epochs-draw-the-same",)):
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
    scope = "run"
    needs = WORKERS

    def __init__(self) -> None:
        super().__init__()
        self._book = WorkerBook()
        self._last: dict[tuple[int, str, int], Worker] = {}
        self._reported: set[tuple[int, str]] = set()

    def observe(self, event: Event) -> list[Violation]:
        found = []
        for worker in self._book.observe(event):
            key = (worker.rank, worker.loader, worker.number)
            before = self._last.get(key)
            self._last[key] = worker
            if before is None or before.epoch == worker.epoch:
                continue
            self.triggered += 1
            same = [
                name
                for name, states in worker.drawn.items()
                if before.drawn.get(name) == states and not self._is_shared(name, worker)
            ]
            if same and key[:2] not in self._reported:
                self._reported.add(key[:2])
                found.append(self._violation(same[0], before, worker))
        return found

    def _is_shared(self, name: str, worker: Worker) -> bool:
        """Whether another worker draws the same numbers, which TC504 reports."""
        return any(
            other.drawn.get(name) == worker.drawn[name]
            for (rank, loader, number), other in self._last.items()
            if (rank, loader) == (worker.rank, worker.loader) and number != worker.number
        )

    def _violation(self, generator: str, before: Worker, worker: Worker) -> Violation:
        observed = (
            f"worker {worker.number} starts with the same state of {described(generator)} in "
            f"epochs {before.epoch} and {worker.epoch}"
        )
        return Violation(
            check_id=self.code,
            step=self._book.step(worker),
            rank=worker.rank,
            stage="train",
            subject=Subject(api=DATA_LOADER, variable=worker.loader),
            symptom=Symptom.REPEATED_DATA,
            message=(
                f"in epochs {before.epoch} and {worker.epoch}, worker {worker.number} of "
                f"{worker.loader} draws the same random numbers from {described(generator)}"
            ),
            expected="each epoch draws its own numbers",
            observed=observed,
            evidence=(before.event, worker.event),
        )
