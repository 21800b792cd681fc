"""Within an epoch, samples are drawn again before all others were drawn."""

from __future__ import annotations

from dataclasses import dataclass, field

from traincheck.rules.base.rule import BuiltInRule
from traincheck.rules.shared.loaders import BATCHES, DATA_LOADER, TrainingLoaders
from traincheck.schema.events import BatchEvent, Event, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation

_PROOF = 8  # repeated samples, and new samples after them
_MOST = 1 << 16  # indices stored for an epoch
_SAMPLERS = frozenset(
    {
        "torch.utils.data.sampler.RandomSampler",
        "torch.utils.data.sampler.SubsetRandomSampler",
        "builtins.list",
    }
)


class SampleRedrawn(BuiltInRule, code="TC514", severity="info", aliases=("drawn-again",)):
    """sample-redrawn: some samples come several times within an epoch, and others never.

    What it checks:
        A RandomSampler, SubsetRandomSampler or list of indices does not draw a sample of a training
        epoch again before all others were drawn.

    Why it matters:
        With replacement, an epoch of n draws misses a third of n samples. Duplicate indices in a
        list count twice, and can be on both sides of a split.

    Fires on:
        Both cases need 8 repeated samples and 8 new ones after them.

        - RandomSampler(replacement=True).
        - Indices from numpy.random.choice without replace=False.

    Stays quiet on:
        - WeightedRandomSampler and custom samplers, which repeat on purpose.
        - Epochs longer than the data, which start over when all samples were drawn.
        - Samples that pad the last batch.
        - Evaluation.

    Fix:
        Use shuffle=True, or choose indices with replace=False.

    Source:
        https://github.com/pytorch/pytorch/issues/38032
    """

    title = "Within an epoch of {variables} some samples come several times, and others never"
    likely_cause = (
        "The sampler may draw with replacement, or its list of indices contains duplicates."
    )
    fix = "Draw without replacement (shuffle=True), unless this is intended."
    needs = BATCHES

    def __init__(self) -> None:
        super().__init__()
        self._epochs: dict[tuple[int, str], _Epoch] = {}
        self._reported: set[tuple[int, str]] = set()
        self._training = TrainingLoaders()

    def observe(self, event: Event) -> list[Violation]:
        self._training.observe(event)
        if isinstance(event, BatchEvent):
            if event.sampler in _SAMPLERS and event.indices:
                self._enter(event)
        elif isinstance(event, StepEvent):
            if not event.recorded:
                self._epochs.clear()
            return self._conclude()
        return []

    def _enter(self, event: BatchEvent) -> None:
        key = (event.rank, event.loader)
        epoch = self._epochs.get(key)
        if epoch is None or epoch.number != event.epoch:
            epoch = self._epochs[key] = _Epoch(event.epoch)
            self.triggered += 1
        for index in event.indices:
            if index in epoch.seen:
                epoch.again += 1
                epoch.first = epoch.first or event
            elif len(epoch.seen) < _MOST:
                epoch.seen.add(index)
                epoch.after += epoch.again >= _PROOF

    def _conclude(self) -> list[Violation]:
        found = []
        for key, epoch in self._epochs.items():
            if key in self._reported or epoch.first is None or epoch.after < _PROOF:
                continue
            if key in self._training:
                self._reported.add(key)
                found.append(self._violation(epoch.first, epoch))
        return found

    def _violation(self, event: BatchEvent, epoch: _Epoch) -> Violation:
        sampler = (event.sampler or "sampler").rpartition(".")[2]
        return Violation(
            check_id=self.code,
            step=event.step,
            rank=event.rank,
            stage="train",
            subject=Subject(api=DATA_LOADER, variable=event.loader),
            symptom=Symptom.ADVICE,
            message=(
                f"{event.loader} ({sampler}) draws samples of epoch {epoch.number} again "
                "before all "
                "others were drawn"
            ),
            expected="each sample comes once in an epoch",
            observed=(
                f"{epoch.again} draws of earlier samples, and {epoch.after} new samples later"
            ),
            evidence=(event,),
        )


@dataclass(slots=True)
class _Epoch:
    number: int
    seen: set[int] = field(default_factory=set)
    again: int = 0
    after: int = 0  # new samples after enough others were repeated
    first: BatchEvent | None = None
