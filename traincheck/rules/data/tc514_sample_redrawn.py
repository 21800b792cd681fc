"""Within an epoch, samples are drawn again before others were drawn at all."""

from __future__ import annotations

from dataclasses import dataclass, field

from traincheck.rules.base.rule import BuiltInRule
from traincheck.rules.shared.loaders import BATCHES, DATA_LOADER, TrainingLoaders
from traincheck.schema.events import BatchEvent, Event, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation

_PROOF = 8  # samples that come again, before as many that had not come
_MOST = 1 << 16  # indices of an epoch that are remembered
_SAMPLERS = frozenset(
    {
        "torch.utils.data.sampler.RandomSampler",
        "torch.utils.data.sampler.SubsetRandomSampler",
        "builtins.list",
    }
)


class SampleRedrawn(BuiltInRule, code="TC514", severity="info", aliases=("drawn-again",)):
    """sample-redrawn: samples come several times within an epoch, and others do not.

    What it checks:
        A RandomSampler, SubsetRandomSampler or list of indices draws no sample of a training epoch
        again before all others were drawn.

    Why it matters:
        With replacement, an epoch of n draws leaves out a third of n samples. Indices that are in a
        list twice weigh twice, and can stand on both sides of a split.

    Fires on:
        RandomSampler(replacement=True); indices from numpy.random.choice without replace=False: 8
        samples that come again, and 8 new ones after them.

    Stays quiet on:
        WeightedRandomSampler and samplers of one's own, which mean it; epochs longer than the data,
        which begin again when all was drawn; samples that fill the last batch up; evaluation.

    Fix:
        Use shuffle=True, or choose indices with replace=False.

    Source:
        https://github.com/pytorch/pytorch/issues/38032
    """

    title = "Within an epoch of {variables} some samples come several times, and others never"
    likely_cause = (
        "The sampler draws with replacement, or the indices that it was given hold some twice."
    )
    fix = "Draw without replacement (shuffle=True), if this is not meant."
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
                f"{epoch.again} draws of samples that had come, and {epoch.after} new ones later"
            ),
            evidence=(event,),
        )


@dataclass(slots=True)
class _Epoch:
    number: int
    seen: set[int] = field(default_factory=set)
    again: int = 0
    after: int = 0  # samples that were new when others had come again
    first: BatchEvent | None = None
