"""Samplers whose order repeats, or whose weights are too few."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from traincheck.rules.base.rule import EventRule, fresh
from traincheck.rules.shared.loaders import BATCHES, DATA_LOADER, LoaderRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import BatchEvent, CallEvent, Event, OptimizerEvent, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families

_MAX_INDICES = 4096  # stored of the first epoch
_PROOF = 6.0  # the order repeats by chance once in 10**6


class ShuffledOrderRepeats(LoaderRule, code="TC503"):
    """shuffled-order-repeats: every epoch has the same shuffled order.

    What it checks:
        A training loader with a shuffling sampler does not draw its samples in the order of an
        earlier epoch.

    Why it matters:
        The same samples share a batch for the whole training, as if shuffling stopped after the
        first epoch.

    Fires on:
        - DistributedSampler.set_epoch() is never called.
        - A generator or a global seed is reset at the start of each epoch.

    Stays quiet on:
        - Loaders that do not shuffle.
        - Evaluation.
        - A single epoch.
        - So few samples that an order can repeat by chance.
        - A second training with a new optimizer.
        - A batch that is fetched before an epoch and not trained on, e.g. ``next(iter(loader))``.

    Fix:
        Call sampler.set_epoch(epoch) before each epoch. Seed once, before the first epoch.

    Source:
        https://github.com/pytorch/pytorch/issues/31771, https://github.com/huggingface/transformers/issues/4398
    """

    title = "Epochs of {variables} repeat the same shuffled order"
    likely_cause = (
        "The generator with which {variables} shuffles may be seeded with the same number "
        "before each epoch: by a seed call inside the epoch loop, or by a new generator."
    )
    fix = "Seed once before the first epoch, or with a number that depends on the epoch."
    needs = BATCHES | Needs(kinds=frozenset({"optimizer"}))
    _loaders: dict[str, _Orders] = fresh(dict)
    _last: dict[int, str] = fresh(dict)  # rank -> loader of its last batch
    _repeated: dict[str, BatchEvent] = fresh(dict)

    def observe(self, event: Event) -> list[Violation]:
        if isinstance(event, BatchEvent):
            self._last[event.rank] = event.loader
            if event.indices:
                self._enter(event)
        elif isinstance(event, CallEvent):
            if (event.family or event.api) == Families.BACKWARD:
                # Mark the epoch as trained on: before its first backward, the batch
                # may only be viewed.
                loader = self._last.get(event.rank, "")
                orders = self._loaders.get(loader)
                if orders is None:
                    return []
                orders.is_trained_on = True
                if orders.repeated is not None:
                    self._repeated.setdefault(loader, orders.repeated)
        elif isinstance(event, OptimizerEvent) and event.change == "created":
            self._loaders.clear()
        elif isinstance(event, StepEvent):
            if not event.recorded:
                self._loaders.clear()
            found = []
            for loader, batch in self._repeated.items():
                if loader not in self.reported and (event.rank, loader) in self.training:
                    self.reported.add(loader)
                    found.append(self._violation(batch))
            return found
        return []

    def _enter(self, event: BatchEvent) -> None:
        orders = self._loaders.get(event.loader)
        is_new = orders is not None and event.epoch != orders.epoch
        if orders is None or (is_new and orders.is_first and not orders.is_trained_on):
            if event.index:
                return  # the recording starts in the middle of an epoch
            orders = self._loaders[event.loader] = _Orders(event.epoch)
        elif is_new:
            self.triggered += 1
            orders.epoch, orders.place, orders.is_first = event.epoch, 0, False
            orders.agrees, orders.start = event.index == 0, event
            orders.is_trained_on, orders.repeated = False, None
        if orders.is_first:
            if len(orders.first) < _MAX_INDICES and event.drawn == len(event.indices):
                orders.first += event.indices
            return
        end = orders.place + len(event.indices)
        if orders.agrees and orders.first[orders.place : end] != list(event.indices):
            orders.agrees = False
        orders.place = end
        if orders.agrees and orders.start is not None and _is_proof(orders.first, end):
            orders.repeated = orders.start
            if orders.is_trained_on:
                self._repeated.setdefault(event.loader, orders.start)

    def _violation(self, event: BatchEvent) -> Violation:
        is_distributed = "DistributedSampler" in (event.sampler or "")
        sampler = (event.sampler or "sampler").rpartition(".")[2]
        cause = fix = ""
        if is_distributed:
            cause = (
                "set_epoch() of the DistributedSampler of {variables} is never called, so it "
                "shuffles every epoch with the same seed."
            )
            fix = "Call loader.sampler.set_epoch(epoch) at the start of every epoch."
        return self.violation(
            event,
            stage="train",
            subject=Subject(api=DATA_LOADER, variable=event.loader),
            symptom=Symptom.REPEATED_DATA,
            message=f"{event.loader} ({sampler}) draws the samples of epoch {event.epoch} in the "
            "same order as in the first epoch",
            expected="each epoch has its own order",
            observed=f"epoch {event.epoch} starts with samples {list(event.indices[:4])} again",
            likely_cause=cause,
            fix=fix,
        )


@dataclass(slots=True)
class _Orders:
    """The order of the first trained epoch, and how far the current epoch agrees with it."""

    epoch: int
    first: list[int] = field(default_factory=list)
    is_first: bool = True
    place: int = 0
    agrees: bool = True
    start: BatchEvent | None = None
    is_trained_on: bool = False  # backward() ran in the current epoch
    repeated: BatchEvent | None = None  # the start of the current epoch, once it is a proven repeat


def _is_proof(order: Sequence[int], count: int) -> bool:
    """Whether the order is shuffled and its start too unlikely to occur twice."""
    begin = order[:count]
    if count > len(order) or list(begin) == sorted(begin):
        return False
    different = len(set(order))
    chances = (math.log10(max(different - i, 1)) for i in range(count))
    return sum(chances) >= _PROOF


class SamplerWeightsTooFew(EventRule, code="TC516", severity="error", aliases=("too-few-weights",)):
    """sampler-weights-too-few: a weighted sampler draws only the first few samples of a dataset.

    What it checks:
        WeightedRandomSampler has a weight for each sample of the dataset.

    Why it matters:
        It draws indices below the number of its weights. With one weight for each of ten classes,
        it only ever draws the first ten samples. The loss falls as the model memorizes them.

    Fires on:
        - WeightedRandomSampler(1 / class_counts, len(dataset)).

    Stays quiet on:
        - A weight for each sample.
        - Other samplers.
        - Datasets of unknown length.

    Fix:
        Look up the weight of each sample's class: weights[labels].

    Source:
        https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.WeightedRandomSampler
    """

    title = "Only the first samples of a dataset are drawn by {variables}"
    likely_cause = (
        "WeightedRandomSampler may have received one weight for each class instead of one for "
        "each sample: {observed}."
    )
    fix = "Pass the weight of each sample's class: WeightedRandomSampler(weights[labels], n)."
    needs = BATCHES
    _seen: set[tuple[int, str]] = fresh(set)

    def judge(self, event: Event) -> list[Violation]:
        if not isinstance(event, BatchEvent) or not event.weights:
            return []
        key = (event.rank, event.loader)
        if key in self._seen:
            return []
        self._seen.add(key)
        self.triggered += 1
        if event.weights >= event.dataset_size:
            return []
        observed = f"{event.weights} weights for {event.dataset_size} samples"
        return self.found(
            event,
            subject=Subject(api=DATA_LOADER, variable=event.loader),
            symptom=Symptom.REPEATED_DATA,
            message=f"{event.loader} draws only the first {event.weights} samples: {observed}",
            expected="a weight for each sample",
            observed=observed,
        )
