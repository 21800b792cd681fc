"""Orders of samples that get lost, and datasets that are written while they are read."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from traincheck.rules.base.rule import EventRule, fresh
from traincheck.rules.shared.loaders import BATCHES, DATA_LOADER, LoaderRule
from traincheck.schema.events import BatchEvent, Event, OptimizerEvent, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.data import DatasetReads, EpochOrder
from traincheck.schema.observations.reading import observed

_MOST = 4096  # compared indices of an epoch
_LEAST = 12  # of them: fewer agree by chance
_SORTED = 0.9  # share of neighbors in rising order


@dataclass(slots=True)
class _Order:
    """The order of the first epoch, and how far the present one agrees.

    drawn: the generators that the present epoch drew from.
    """

    epoch: int
    first: list[int] = field(default_factory=list)
    first_drawn: tuple[str, ...] = ()
    drawn: tuple[str, ...] = ()
    is_first: bool = True
    place: int = 0
    agrees: bool = True
    start: BatchEvent | None = None


class DrawnOrderLost(LoaderRule, code="TC072"):
    """drawn-order-lost: a shuffled order is sorted again, so that all epochs are the same.

    What it checks:
        Where a sampler draws random numbers for each epoch, a later epoch does not have the sorted
        order of the first one again.

    Why it matters:
        The shuffle has no effect. The same samples share a batch in every epoch, in the order of
        the dataset, so in-batch negatives never change.

    Fires on:
        - A permutation that is put into a set or is sorted before use.
        - A DistributedSampler with shuffle=True whose indices a batch sampler sorts.

    Stays quiet on:
        - Samplers that draw nothing: sequential ones, and evaluation.
        - Subsets that are drawn in each epoch and then sorted.
        - Fewer samples than can agree by chance.
        - Shuffled orders that repeat, which TC503 reports.

    Fix:
        Keep the permutation in a list, or in a dict: dict.fromkeys(indices) keeps the order.

    Source:
        https://github.com/huggingface/sentence-transformers/issues/3069
    """

    title = "A shuffled order is lost: each epoch has the same sorted batches"
    likely_cause = (
        "The sampler draws a permutation, and the indices are sorted again before they are used, "
        "as by a set."
    )
    fix = "Keep the permutation in a list or in dict.fromkeys(...), which keep the order."
    needs = BATCHES | needs_of(EpochOrder)
    _orders: dict[tuple[int, str], _Order] = fresh(dict)
    _found: dict[tuple[int, str], Violation] = fresh(dict)

    def observe(self, event: Event) -> Sequence[Violation]:
        if isinstance(event, BatchEvent):
            if event.indices:
                self._enter(event)
        elif isinstance(event, OptimizerEvent) and event.change == "created":
            self._orders.clear()
        elif isinstance(event, StepEvent):
            if not event.recorded:
                self._orders = {k: o for k, o in self._orders.items() if k[0] != event.rank}
                return []
            found = []
            for key, order in self._orders.items():
                if key[0] != event.rank or key not in self.training or order.is_first:
                    continue
                if not (order.drawn and order.first_drawn) or order.place < _LEAST:
                    continue
                self.triggered += 1
                if (
                    key not in self.reported
                    and order.agrees
                    and _is_sorted(order.first[: order.place])
                ):
                    self.reported.add(key)
                    start = order.start
                    assert start is not None  # set at the beginning of each later epoch
                    sampler = (start.sampler or "sampler").rpartition(".")[2]
                    generators = ", ".join(order.drawn)
                    found += self.found(
                        start,
                        subject=Subject(api=DATA_LOADER, variable=start.loader),
                        symptom=Symptom.REPEATED_DATA,
                        message=f"{start.loader} ({sampler}) draws a random order and has the same "
                        "one again",
                        expected="each epoch has its own order",
                        observed=f"{sampler} draws from {generators}, and epoch {start.epoch} "
                        f"begins with samples {list(start.indices[:4])} again",
                    )
            return found
        epoch = observed(event, EpochOrder)
        known = None if epoch is None else self._orders.get((event.rank, epoch.loader))
        if epoch is not None and known is not None:
            known.drawn = epoch.drawn
            if known.is_first:
                known.first_drawn = epoch.drawn
        return ()

    def _enter(self, event: BatchEvent) -> None:
        key = event.rank, event.loader
        order = self._orders.get(key)
        if order is None:
            if event.index == 0:
                order = self._orders[key] = _Order(event.epoch)
            else:
                return  # the recording starts in the middle of an epoch
        if event.epoch != order.epoch:
            order.epoch, order.is_first, order.place, order.drawn = event.epoch, False, 0, ()
            order.agrees, order.start = event.index == 0, event
        whole = event.drawn == len(event.indices)
        if order.is_first:
            if whole and len(order.first) < _MOST:
                order.first += event.indices
            return
        end = order.place + len(event.indices)
        order.agrees &= whole and order.first[order.place : end] == list(event.indices)
        order.place = end


def _is_sorted(order: Sequence[int]) -> bool:
    """Whether nearly all neighbors rise: a set of whole numbers, with some taken out."""
    rising = sum(first < second for first, second in itertools.pairwise(order))
    return rising >= _SORTED * (len(order) - 1)


_LEAST_WRITES = 2  # samples


class DatasetWrittenWhenRead(EventRule, code="TC073"):
    """dataset-written-when-read: __getitem__ changes the stored data in place.

    What it checks:
        Without random numbers, a sample has the same values in each epoch, and fetching it does not
        change the stored item that it is made from.

    Why it matters:
        Each epoch trains on samples that were normalized, scaled or shifted once more. The input
        drifts away from the evaluation data, and the loss still falls.

    Fires on:
        - An in-place operation on self.images[i], which is a view.
        - An in-place change of an array, list or dict that the dataset stores.

    Stays quiet on:
        - Samples that draw random numbers, also from generators of the dataset.
        - Caches that are filled when an item is first read.
        - Datasets whose plain attributes change, such as an epoch or a size.
        - Workers, which have their own copy of the dataset.

    Fix:
        Copy the item first, or use operations that return a new tensor.

    Source:
        https://github.com/facebookresearch/pycls/pull/21
    """

    title = "Reading a sample changes the dataset"
    likely_cause = (
        "__getitem__ or a transform may write to the stored data in place: an index or a view "
        "is no copy."
    )
    fix = "Copy the item first: self.data[index].clone(), or .copy() for an array."
    needs = needs_of(DatasetReads)

    def judge(self, event: Event) -> Sequence[Violation]:
        found = observed(event, DatasetReads)
        if found is None:
            return ()
        self.triggered += 1
        is_written = found.written >= _LEAST_WRITES
        is_changed = found.differing >= _LEAST_WRITES or found.returned >= _LEAST_WRITES
        if not (is_written and is_changed) or found.cls in self.reported:
            return ()
        self.reported.add(found.cls)
        name = found.cls.rpartition(".")[2]
        seen = f"{found.differing} of {found.compared} samples have other values than before"
        if not found.compared:
            seen = f"{found.returned} of them are the samples that it returns"
        violation = self.violation(
            event,
            subject=Subject(api=f"{found.cls}.__getitem__"),
            symptom=Symptom.REPEATED_DATA,
            message=f"reading a sample of {name} changes {found.attribute}",
            expected="an index gives the same values in each epoch",
            observed=f"in epoch {found.epoch}, fetching changes {found.written} of {found.watched} "
            f"items in {name}.{found.attribute}; {seen}",
        )
        return [violation]
