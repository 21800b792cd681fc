"""Generators that are seeded again during training."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from traincheck.rules.base.rule import EventRule, fresh
from traincheck.rules.data.worker_draws import WORKERS, Worker, WorkerRule
from traincheck.rules.shared.loaders import DATA_LOADER
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event, OptimizerEvent, RngEvent, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families


class ReseededDuringTraining(EventRule, code="TC510", aliases=("seeded-again",)):
    """reseeded-during-training: training reseeds torch with the same number and repeats its draws.

    What it checks:
        A step that seeds torch's generator like an earlier step does not end with the generator
        state of that step. A step that draws nothing does not count.

    Why it matters:
        Dropout masks, augmentations, noise and the order of a shuffled loader repeat. The model
        sees a fraction of the variety that the code suggests.

    Fires on:
        - torch.manual_seed(seed) with one number inside the loop or at the start of each epoch.

    Stays quiet on:
        - Seeding once.
        - A different seed for every epoch or step.
        - fork_rng() around a seed.
        - Seeds set during evaluation.
        - Training that draws no random numbers.
        - Several trainings in one program with the same seed, whether their optimizers are created
          then or earlier.

    Fix:
        Seed once before training, or with a number that depends on the epoch.

    Source:
        https://github.com/Lightning-AI/pytorch-lightning/issues/20412
    """

    title = "Training seeds torch again with the same number"
    likely_cause = "torch.manual_seed() with a constant may be called inside the loop: {observed}."
    fix = "Seed once before the loop, or use a seed that depends on the epoch or step."
    needs = Needs(
        calls=frozenset({Families.OPTIMIZER_STEP}), kinds=frozenset({"optimizer", "rng", "step"})
    )
    _seeded: RngEvent | None = None
    _left: RngEvent | None = None
    _owners: set[str] = fresh(set)  # optimizers that stepped in this step
    # (seed, state at the end, optimizers) -> step
    _seen: dict[tuple[int, str, frozenset[str]], int] = fresh(dict)
    _found: Violation | None = None  # reported unless another training starts next step

    def judge(self, event: Event) -> list[Violation]:
        if isinstance(event, RngEvent) and event.source == "torch":
            if event.is_step_end:
                self._left = event
            elif event.change == "seed" and event.stage != "eval" and event.step is not None:
                self._seeded = event
        elif isinstance(event, CallEvent) and event.family == Families.OPTIMIZER_STEP:
            self._owners.add(str(event.owner))
        elif isinstance(event, OptimizerEvent):
            if event.change == "created":
                self._seen.clear()  # another training, which should draw like the one before
                self._found = None
        elif isinstance(event, StepEvent):
            found, self._found = self._found, None
            seeded, left, owners = self._seeded, self._left, frozenset(self._owners)
            self._seeded = self._left = None
            self._owners.clear()
            if self.is_over:
                return []
            if found is not None:
                self.is_over = True
                return [found]
            if seeded is not None and left is not None and event.recorded:
                self._found = self._step(seeded, left, event, owners)
            return []
        return []

    def _step(
        self, seeded: RngEvent, left: RngEvent, event: StepEvent, owners: frozenset[str]
    ) -> Violation | None:
        self.triggered += 1
        if seeded.seed is None or left.fingerprint is None or seeded.fingerprint is None:
            return None
        if left.fingerprint == seeded.fingerprint:
            return None  # nothing was drawn
        key = (seeded.seed, left.fingerprint, owners)
        first = self._seen.setdefault(key, event.step or 0)
        if first == event.step or not owners:
            return None
        observed = f"steps {first} and {event.step} both seed with {seeded.seed} and draw the same"
        return self.violation(
            event,
            stage="train",
            subject=Subject(api="torch.manual_seed"),
            symptom=Symptom.REPEATED_DATA,
            message=f"torch.manual_seed is called again with the same number: {observed}",
            expected="random numbers that differ from step to step",
            observed=observed,
            evidence=(seeded, left),
        )


_PER_STEP, _STEPS = 3, 3  # seeds with one number in a step; consecutive such steps
_PER_WORKER = 8
_MOST_WORKERS = 64  # that are watched
_NAMES = {"numpy": "numpy.random.seed", "python": "random.seed", "torch": "torch.manual_seed"}

_Seed = tuple[str, int]  # source and number


class ReseededPerSample(WorkerRule, code="TC518", aliases=("seeded-for-each-sample",)):
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
    _loops: defaultdict[int, _Loop] = fresh(lambda: defaultdict(_Loop))
    _of_streams: defaultdict[str, Counter[_Seed]] = fresh(lambda: defaultdict(Counter))
    _workers: dict[str, Worker] = fresh(dict)  # of loaders that feed training
    _last: dict[_Seed, RngEvent] = fresh(dict)

    def observe(self, event: Event) -> list[Violation]:
        if isinstance(event, RngEvent):
            if event.change != "seed" or event.seed is None or event.stage == "eval":
                return []
            key = (event.source, event.seed)
            self._last[key] = event
            if event.step is None:
                self._of_streams[event.stream][key] += 1
            elif event.source in ("numpy", "python"):  # TC510 reports torch, from its states
                self._loops[event.rank].counted[key] += 1
        elif isinstance(event, StepEvent):
            self._workers.update((worker.event.stream, worker) for worker in self._book.ready)
            found = []
            for stream, worker in self._workers.items():
                for key, count in self._of_streams[stream].most_common(1):
                    self.triggered += 1
                    if count >= _PER_WORKER:
                        often = f"{count} times in worker {worker.number} of {worker.loader}"
                        found += self._report(key, event, often)
            self._workers = dict(list(self._workers.items())[-_MOST_WORKERS:])
            return [*self._step(event), *found]
        return []

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

    def _report(self, key: _Seed, event: StepEvent, often: str) -> list[Violation]:
        source, number = key
        if source in self.reported:
            return []
        self.reported.add(source)
        name = _NAMES.get(source, source)
        return self.found(
            event,
            stage="train",
            subject=Subject(api=name),
            symptom=Symptom.REPEATED_DATA,
            message=f"{name}({number}) is called repeatedly while {DATA_LOADER} fetches data",
            expected="random numbers that differ from sample to sample",
            observed=f"seeded with {number}, {often}",
            evidence=(self._last[key],),
            title=f"{name} is called for each sample with the same number",
        )


@dataclass(slots=True)
class _Loop:
    """One rank. counted: seeds in this step. streaks: consecutive steps with many equal seeds."""

    counted: Counter[_Seed] = field(default_factory=Counter)
    streaks: dict[_Seed, int] = field(default_factory=dict)
