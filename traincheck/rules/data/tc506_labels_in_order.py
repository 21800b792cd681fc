"""A training loader that does not shuffle returns one class after the other."""

from __future__ import annotations

from dataclasses import dataclass, field

from traincheck.rules.base.rule import fresh
from traincheck.rules.shared.loaders import BATCHES, DATA_LOADER, LoaderRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import BatchEvent, Event, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.values import tensor_summary

_SEQUENTIAL = "torch.utils.data.sampler.SequentialSampler"
_MIN_BATCH = 4
_BATCHES = 4


class LabelsInOrder(LoaderRule, code="TC506"):
    """labels-in-order: classes come one after the other because nothing is shuffled.

    What it checks:
        If a training loader does not shuffle, the labels of its batches are not sorted.

    Why it matters:
        For many consecutive steps the model sees only one class and forgets the earlier ones.

    Fires on:
        - shuffle=False over data that is stored class by class. Three classes have come, each batch
          continues where the previous one ended, and most batches hold a single class. After four
          batches, a class and the next one also count as a single class.

    Stays quiet on:
        - Loaders that shuffle.
        - Labels in any other order.
        - Evaluation.
        - Batches of fewer than four samples.
        - Targets that are not integers.

    Fix:
        Pass shuffle=True to the training loader.

    Source:
        https://discuss.pytorch.org/t/obtaining-abnormal-changes-in-loss-and-accuracy/84911

    Options:
        classes: number of classes that must come in order before the rule fires.
    """

    title = "Training data of {variables} is sorted by class"
    likely_cause = (
        "{variables} {does|do} not shuffle (shuffle=False), and {its|their} dataset may be "
        "stored class by class."
    )
    fix = "Build the training loader with shuffle=True."
    needs = BATCHES | Needs(stats=frozenset({"batch"}))
    classes: int = 3
    _runs: dict[tuple[str, str], _Run | None] = fresh(dict)

    def observe(self, event: Event) -> list[Violation]:
        if isinstance(event, BatchEvent) and event.sampler == _SEQUENTIAL and event.epoch == 0:
            for path, leaf in event.leaves.items():
                summary = tensor_summary(leaf)
                if summary is None or summary.dtype != "int64" or len(summary.shape) != 1:
                    continue
                low, high = ((summary.stats or {}).get(name) for name in ("min", "max"))
                if low is None or high is None or summary.shape[0] < _MIN_BATCH:
                    continue
                key = (event.loader, path)
                run = self._runs.setdefault(key, _Run(event, low))
                if run is None or low < run.last or (run.batches and event.index == 0):
                    self._runs[key] = None
                    continue
                self.triggered += 1
                run.last = high
                run.classes |= {low, high}
                run.batches += 1
                run.single += low == high
                run.narrow += high - low <= 1
        elif isinstance(event, StepEvent):
            found = []
            for (loader, path), run in self._runs.items():
                if (
                    run is None
                    or loader in self.reported
                    or (event.rank, loader) not in self.training
                ):
                    continue
                if len(run.classes) >= self.classes and run.is_sorted:
                    self.reported.add(loader)
                    first = run.first
                    found += self.found(
                        first,
                        stage="train",
                        subject=Subject(api=DATA_LOADER, variable=first.loader),
                        symptom=Symptom.REPEATED_DATA,
                        message=f"labels ({path}) of {first.loader} come in ascending order; most "
                        "batches hold one class",
                        expected="batches hold samples of all classes",
                        observed=f"{run.narrow} of the first {run.batches} batches hold one class, "
                        f"or one class and the next; {len(run.classes)} classes came one after the "
                        "other",
                    )
            return found
        return []


@dataclass(slots=True)
class _Run:
    """Labels of one tensor so far, while they are in order."""

    first: BatchEvent
    last: float
    classes: set[float] = field(default_factory=set)
    batches: int = 0
    single: int = 0
    narrow: int = 0  # batches with one class, or one and the next

    @property
    def is_sorted(self) -> bool:
        """Whether most batches are sorted; two classes in few batches may be chance."""
        is_narrow = self.batches >= _BATCHES and 2 * self.narrow > self.batches
        return is_narrow or 2 * self.single > self.batches
