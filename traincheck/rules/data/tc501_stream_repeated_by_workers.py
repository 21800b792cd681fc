"""Every worker of a DataLoader yields all samples of an iterable dataset."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from traincheck.rules.base.rule import BuiltInRule, fresh
from traincheck.rules.shared.loaders import BATCHES, DATA_LOADER, STREAM, content_of
from traincheck.schema.events import BatchEvent, Event
from traincheck.schema.findings import Subject, Symptom, Violation

_MAX_SAMPLES = 100_000  # counted in an epoch
_MIN_SAMPLES = 8  # distinct samples, before their counts are evidence
_SHARE = 0.9  # of the samples: came from all workers


class StreamRepeatedByWorkers(BuiltInRule, code="TC501", severity="error"):
    """stream-repeated-by-workers: each sample of an IterableDataset comes once per worker.

    What it checks:
        If several workers read an iterable dataset, their batches differ, and samples do not come
        from every worker within an epoch.

    Why it matters:
        An epoch is several epochs long, successive batches are copies of each other, and metrics
        count each sample several times. No error is raised.

    Fires on:
        - An __iter__ that does not use get_worker_info() to select its part.

    Stays quiet on:
        - Map-style datasets with any sampler (replacement, weights, oversampling).
        - Streams read by one worker.
        - Streams that are split.
        - Data that is the same in every batch.
        - Rows that occur more than once in the data.

    Fix:
        Let each worker yield its own part. In __iter__, call torch.utils.data.get_worker_info() and
        take every num_workers-th sample, starting at id.

    Source:
        https://github.com/huggingface/datasets/issues/3423, https://github.com/huggingface/nanoVLM/pull/203
    """

    title = "Each worker of {variables} yields all samples of the dataset"
    likely_cause = (
        "The IterableDataset of {variables} does not split its samples among the workers in "
        "__iter__, so each worker yields every sample."
    )
    fix = (
        "In __iter__, take worker = torch.utils.data.get_worker_info() and yield only every "
        "worker.num_workers-th sample, starting with sample worker.id."
    )
    needs = BATCHES
    _epochs: dict[str, _Epoch] = fresh(dict)

    def observe(self, event: Event) -> list[Violation]:
        if not isinstance(event, BatchEvent) or event.sampler != STREAM or event.workers < 2:  # noqa: PLR2004
            return []
        loader, found = event.loader, []
        epoch = self._epochs.get(loader)
        if epoch is None or epoch.number != event.epoch:
            found = [] if epoch is None else self._count(loader, epoch)
            epoch = self._epochs[loader] = _Epoch(event.epoch)
            self.triggered += 1
        content = content_of(event)
        if content and epoch.last:
            if not event.index % event.workers:
                epoch.is_varied |= content != epoch.last
            elif content == epoch.last:
                epoch.copied = epoch.copied or event
                epoch.copies += 1
            else:
                epoch.own += 1
        epoch.last = content
        worker = event.index % event.workers
        for sample in event.samples:
            makers = epoch.makers.get(sample)
            if makers is not None:
                makers[worker] += 1
                if len(makers) > 1:
                    epoch.again = epoch.again or event
            elif len(epoch.makers) < _MAX_SAMPLES:
                epoch.makers[sample] = Counter((worker,))
        is_proof = epoch.is_varied and not epoch.own and epoch.copies >= 2 * (event.workers - 1)
        if is_proof and epoch.copied is not None and loader not in self.reported:
            said = f"batches of {event.workers} workers are equal in all {epoch.copies} comparisons"
            found += [self._violation(epoch.copied, said)]
        return found

    def finish(self) -> list[Violation]:
        return [v for loader, epoch in self._epochs.items() for v in self._count(loader, epoch)]

    def _count(self, loader: str, epoch: _Epoch) -> list[Violation]:
        """Count samples after a pass: if workers shuffle, only counts show the repetition."""
        if loader in self.reported or epoch.again is None or len(epoch.makers) < _MIN_SAMPLES:
            return []
        workers = epoch.again.workers
        # Rows that are repeated in the data come unequally often from each worker
        copied = sum(
            len(makers) == workers and len(set(makers.values())) == 1
            for makers in epoch.makers.values()
        )
        if copied < _SHARE * len(epoch.makers):
            return []
        said = f"{copied} of {len(epoch.makers)} samples came from all {workers} workers"
        return [self._violation(epoch.again, said)]

    def _violation(self, event: BatchEvent, observed: str) -> Violation:
        self.reported.add(event.loader)
        return self.violation(
            event,
            subject=Subject(api=DATA_LOADER, variable=event.loader),
            symptom=Symptom.REPEATED_DATA,
            message=f"{event.loader} reads an IterableDataset with {event.workers} workers, and "
            f"each yields all of it: {observed}",
            expected="each sample comes from one worker only",
            observed=observed,
        )


@dataclass(slots=True)
class _Epoch:
    """One pass over a stream.

    copied: first batch equal to that of the worker before. copies, own: batches that are and are
    not. again: first batch with a sample that another worker gave. makers: how often each worker
    gave each sample.
    """

    number: int
    last: tuple[str, ...] = ()
    is_varied: bool = False
    copied: BatchEvent | None = None
    copies: int = 0
    own: int = 0
    again: BatchEvent | None = None
    makers: dict[str, Counter[int]] = field(default_factory=dict)
