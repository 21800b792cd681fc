"""A generator is seeded with one number for each training sample."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from traincheck.rules.base.rule import BuiltInRule
from traincheck.rules.data.worker_draws import WORKERS, Worker, WorkerBook
from traincheck.rules.shared.loaders import DATA_LOADER
from traincheck.schema.claims import Needs
from traincheck.schema.events import Event, RngEvent, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation

_PER_STEP, _STEPS = 3, 3  # seeds with one number in a step; consecutive such steps
_PER_WORKER = 8
_MOST_WORKERS = 64  # that are watched
_NAMES = {"numpy": "numpy.random.seed", "python": "random.seed", "torch": "torch.manual_seed"}

_Seed = tuple[str, int]  # source and number


class ReseededPerSample(BuiltInRule, code="TC518", aliases=("seeded-for-each-sample",)):
    """reseeded-per-sample: each sample is drawn with the same random numbers.

    What it checks:
        While training data is fetched, no generator is seeded with the same number repeatedly.

    Why it matters:
        The random numbers after the seed are the same for all samples: one augmentation, one noise,
        one negative sample. The data does not vary, and no error is raised.

    Fires on:
        - numpy.random.seed(0) or random.seed(0), e.g. in __getitem__ or collate_fn: three times or
          more in each of three consecutive training steps.
        - The same eight times in a worker of a training loader, where torch.manual_seed counts too.

    Stays quiet on:
        - Seeding once.
        - Seeds that depend on the index of the sample or on a random number, e.g. to repeat a
          transform on image and mask.
        - Seeds in evaluation, and in the workers of evaluation loaders.
        - Separate generator objects.

    Fix:
        Seed once before training, or with a number that depends on epoch and index.

    Source:
        https://tanelp.github.io/posts/a-bug-that-plagues-thousands-of-open-source-ml-projects/
    """

    title = "A generator is seeded for each sample with the same number"
    likely_cause = "A constant seed may be set in __getitem__ or collate_fn: {observed}."
    fix = "Seed once before training, or with a number that depends on epoch and index."
    needs = WORKERS | Needs(kinds=frozenset({"rng"}))
    scope = "run"  # workers are separate processes

    def __init__(self) -> None:
        super().__init__()
        self._book = WorkerBook()
        self._loops: defaultdict[int, _Loop] = defaultdict(_Loop)
        self._of_streams: defaultdict[str, Counter[_Seed]] = defaultdict(Counter)
        self._workers: dict[str, Worker] = {}  # of loaders that feed training
        self._last: dict[_Seed, RngEvent] = {}
        self._reported: set[str] = set()

    def observe(self, event: Event) -> list[Violation]:
        ready = list(self._book.observe(event))
        if isinstance(event, RngEvent):
            self._seeded(event)
        elif isinstance(event, StepEvent):
            self._workers.update((worker.event.stream, worker) for worker in ready)
            return [*self._step(event), *self._judge_workers(event)]
        return []

    def _seeded(self, event: RngEvent) -> None:
        if event.change != "seed" or event.seed is None or event.stage == "eval":
            return
        key = (event.source, event.seed)
        self._last[key] = event
        if event.step is None:
            self._of_streams[event.stream][key] += 1
        elif event.source in ("numpy", "python"):  # TC510 reports torch, from its states
            self._loops[event.rank].counted[key] += 1

    def _step(self, event: StepEvent) -> list[Violation]:
        loop = self._loops[event.rank]
        counted, loop.counted = loop.counted, Counter()
        if not event.recorded or not event.counters.get("optimizer_step"):
            loop.streaks.clear()
            return []
        again = {key for key, count in counted.items() if count >= _PER_STEP}
        loop.streaks = {key: loop.streaks.get(key, 0) + 1 for key in again}
        self.triggered += bool(counted)
        return [
            found
            for key, steps in sorted(loop.streaks.items())
            if steps == _STEPS
            for found in self._report(
                key, event, f"{counted[key]} times in a step, in consecutive steps"
            )
        ]

    def _judge_workers(self, event: StepEvent) -> list[Violation]:
        found = []
        for stream, worker in self._workers.items():
            for key, count in self._of_streams[stream].most_common(1):
                self.triggered += 1
                if count >= _PER_WORKER:
                    often = f"{count} times in worker {worker.number} of {worker.loader}"
                    found += self._report(key, event, often)
        self._workers = dict(list(self._workers.items())[-_MOST_WORKERS:])
        return found

    def _report(self, key: _Seed, event: StepEvent, often: str) -> list[Violation]:
        source, number = key
        if source in self._reported:
            return []
        self._reported.add(source)
        name = _NAMES.get(source, source)
        return [
            Violation(
                check_id=self.code,
                step=event.step,
                rank=event.rank,
                stage="train",
                subject=Subject(api=name),
                symptom=Symptom.REPEATED_DATA,
                message=f"{name}({number}) is called repeatedly while {DATA_LOADER} fetches data",
                expected="random numbers that differ from sample to sample",
                observed=f"seeded with {number}, {often}",
                evidence=(self._last[key],),
                title=f"{name} is called for each sample with the same number",
            )
        ]


@dataclass(slots=True)
class _Loop:
    """One rank. counted: seeds in this step. streaks: consecutive steps with many equal seeds."""

    counted: Counter[_Seed] = field(default_factory=Counter)
    streaks: dict[_Seed, int] = field(default_factory=dict)
