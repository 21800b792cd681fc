"""Random augmentation is the same in several DataLoader workers."""

from __future__ import annotations

from traincheck.rules.base.rule import BuiltInRule
from traincheck.rules.data.worker_draws import WORKERS, Worker, WorkerBook, described
from traincheck.rules.shared.loaders import DATA_LOADER
from traincheck.schema.events import Event
from traincheck.schema.findings import Subject, Symptom, Violation


class WorkersRepeatRandomDraws(
    BuiltInRule, code="TC504", severity="error", aliases=("workers-draw-the-same",)
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
    scope = "run"
    needs = WORKERS

    def __init__(self) -> None:
        super().__init__()
        self._book = WorkerBook()
        self._seen: dict[tuple[int, str, int], dict[tuple[str, str, str], Worker]] = {}
        self._reported: set[tuple[int, str, str]] = set()

    def observe(self, event: Event) -> list[Violation]:
        found = []
        for worker in self._book.observe(event):
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
                    and source not in self._reported
                ):
                    self._reported.add(source)
                    found.append(self._violation(name, other, worker))
        return found

    def _violation(self, generator: str, first: Worker, second: Worker) -> Violation:
        observed = (
            f"workers {first.number} and {second.number} start with the same state of "
            f"{described(generator)}"
        )
        return Violation(
            check_id=self.code,
            step=self._book.step(second),
            rank=second.rank,
            stage="train",
            subject=Subject(api=DATA_LOADER, variable=second.loader),
            symptom=Symptom.REPEATED_DATA,
            message=(
                f"workers {first.number} and {second.number} of {second.loader} draw the same "
                f"random numbers from {described(generator)}"
            ),
            expected="each worker draws its own numbers",
            observed=observed,
            evidence=(first.event, second.event),
        )
