"""Ranks that train one model draw the same samples, each in a different order."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from traincheck.rules.base.rule import fresh
from traincheck.rules.shared.loaders import BATCHES, DATA_LOADER, LoaderRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import BatchEvent, CallEvent, Event, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import DDP_INIT

_PROOF, _BATCHES = 32, 3  # samples shared by two ranks, in at least so many batches
_PROOF_BY_INDEX, _SHARE = 8, 0.1  # if their indices are equal too, and of the samples of a rank
_RATIO = 8  # shared samples for each repeat on one rank; duplicates in the data repeat on both
_MOST = 8192  # samples stored for an epoch and rank
_DISTRIBUTED = "torch.utils.data.distributed.DistributedSampler"
_OF_TORCH = "torch.utils.data."  # samplers that do not know of ranks, but for the distributed one


class RanksShareSamples(LoaderRule, code="TC512"):
    """ranks-share-samples: each rank trains on samples of other ranks.

    What it checks:
        If DistributedDataParallel wraps a model, a sample that one rank trained on does not come on
        another rank in another batch of the same epoch.

    Why it matters:
        An epoch sees some samples several times and skips others, or costs as much as several
        epochs. Counts of epochs are wrong.

    Fires on:
        All of these need 32 samples in 3 batches that two ranks have in common. If the loader shows
        that their indices are equal too, 8 samples and a tenth of those of a rank are enough.

        - A shuffling DataLoader without DistributedSampler on every rank.
        - A DistributedSampler with another seed on each rank.
        - Data that each rank shuffles before it is sharded.
        - A sampler that takes the share of a rank from an order that each rank draws differently,
          such as one drawn before the generators of the ranks are synchronized.

    Stays quiet on:
        - Samples that pad the last batches.
        - Sampling with replacement.
        - Duplicates in the data, which also repeat on one rank just as often.
        - Ranks that share each batch (tensor parallel, TC502).
        - Random augmentation, after which samples cannot be identified.
        - Evaluation.

    Fix:
        Pass sampler=DistributedSampler(dataset) to the loader, with the same seed and dataset on
        all ranks, and call its set_epoch(epoch).

    Source:
        https://github.com/Lightning-AI/pytorch-lightning/pull/17713,
        https://github.com/NVlabs/LongLive/issues/71, https://github.com/QwenLM/Qwen3-VL/issues/1947
    """

    title = "Ranks train on the same samples of {variables}"
    likely_cause = (
        "{variables} {has|have} no DistributedSampler: every rank shuffles all of the data "
        "separately."
    )
    fix = "Build the training loader with sampler=DistributedSampler(dataset)."
    scope = "run"
    needs = BATCHES | Needs(calls=frozenset({DDP_INIT}))
    _ranks: set[int] = fresh(set)  # that wrap a model
    _epochs: dict[str, _Epoch] = fresh(dict)

    def observe(self, event: Event) -> list[Violation]:
        if isinstance(event, CallEvent) and event.api == DDP_INIT:
            self._ranks.add(event.rank)
        elif isinstance(event, BatchEvent):
            if event.stage == "train" and len(self._ranks) > 1 and event.samples:
                epoch = self._epochs.get(event.loader)
                if epoch is None or event.epoch > epoch.number:
                    epoch = self._epochs[event.loader] = _Epoch(event.epoch)
                if event.epoch < epoch.number or event.rank not in self._ranks:
                    return []
                own = epoch.ranks.setdefault(event.rank, _Draws())
                own.is_shuffled |= not event.indices or any(
                    b < a for a, b in pairwise(event.indices)
                )
                self.triggered += len(epoch.ranks) > 1
                known = len(event.indices) == len(event.samples)
                for row, sample in enumerate(event.samples):
                    if sample in own.seen:
                        own.again += 1
                    elif len(own.seen) < _MOST:
                        own.seen[sample] = (event.index, event.indices[row] if known else None)
                        self._compare(epoch, event, sample)
        elif isinstance(event, StepEvent):
            return self._conclude()
        return []

    def finish(self) -> list[Violation]:
        return self._conclude()

    def _compare(self, epoch: _Epoch, event: BatchEvent, sample: str) -> None:
        """Record whether another rank had the sample at another place."""
        own = epoch.ranks[event.rank]
        place, index = own.seen[sample]
        for rank, other in epoch.ranks.items():
            found = other.seen.get(sample) if rank != event.rank else None
            if found is None or found[0] == place:
                continue
            # In dataset order, duplicates in the data may come on different ranks.
            is_same = index is not None and index == found[1]
            if (own.is_shuffled and other.is_shuffled) or index == found[1]:
                pair = (min(rank, event.rank), max(rank, event.rank))
                shared = epoch.shared.setdefault(pair, _Shared())
                shared.count += 1
                shared.known += is_same
                shared.places.add(place)
                shared.first = shared.first or event

    def _conclude(self) -> list[Violation]:
        found = []
        for loader, epoch in self._epochs.items():
            for (rank, other), shared in epoch.shared.items():
                if loader in self.reported or shared.first is None:
                    continue
                again = epoch.ranks[rank].again + epoch.ranks[other].again
                fewest = min(len(epoch.ranks[r].seen) for r in (rank, other))
                is_known = shared.known >= max(_PROOF_BY_INDEX, _SHARE * fewest)
                if len(shared.places) < _BATCHES or not (shared.count >= _PROOF or is_known):
                    continue
                is_training = any((r, loader) in self.training for r in (rank, other))
                if again * _RATIO <= shared.count and is_training:
                    self.reported.add(loader)
                    ranks = (rank, other)
                    is_distributed = shared.first.sampler == _DISTRIBUTED
                    cause = fix = ""
                    if is_distributed:
                        cause = (
                            "The DistributedSampler of {variables} has another seed on each rank, "
                            "or the data another order, so the parts of the ranks overlap."
                        )
                        fix = (
                            "Use the same seed for DistributedSampler on all ranks, and data in "
                            "the same order."
                        )
                    sampler = (shared.first.sampler or "none").rpartition(".")[2]
                    if not is_distributed and not (shared.first.sampler or _OF_TORCH).startswith(
                        _OF_TORCH
                    ):
                        cause = (
                            f"Each rank takes its share of a different order: {sampler} draws the "
                            "order with another seed on each rank, or before the generators of the "
                            "ranks are synchronized."
                        )
                        fix = (
                            "Draw the order from one seed on all ranks, after the seed is "
                            "broadcast, and then take order[rank::world_size]. "
                            "DistributedSampler(dataset, seed=...) does this."
                        )
                    found += self.found(
                        shared.first,
                        stage="train",
                        subject=Subject(api=DATA_LOADER, variable=shared.first.loader),
                        symptom=Symptom.REPEATED_DATA,
                        message=f"ranks {ranks[0]} and {ranks[1]} train one model together, but "
                        f"{shared.first.loader} (sampler {sampler}) gives both of them the same "
                        "samples within an epoch",
                        expected="each sample comes on one rank only",
                        observed=f"{shared.count} samples of {len(shared.places)} batches came on "
                        "both ranks",
                        likely_cause=cause,
                        fix=fix,
                    )
        return found


@dataclass(slots=True)
class _Draws:
    """One rank in an epoch. seen: sample -> place of its batch, and its index if known."""

    seen: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    again: int = 0  # samples that came twice on this rank
    is_shuffled: bool = False


@dataclass(slots=True)
class _Shared:
    """Samples shared by two ranks. places: of their batches."""

    count: int = 0
    known: int = 0  # of these, samples whose indices are equal
    places: set[int] = field(default_factory=set)
    first: BatchEvent | None = None


@dataclass(slots=True)
class _Epoch:
    number: int
    ranks: dict[int, _Draws] = field(default_factory=dict)
    shared: dict[tuple[int, int], _Shared] = field(default_factory=dict)
