"""Samples that are all the same, or drawn again and again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from traincheck.readings.losses import number
from traincheck.rules.base.rule import EventRule, fresh
from traincheck.rules.shared.loaders import BATCHES, DATA_LOADER, LoaderRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import BatchEvent, Event, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.values import TensorSummary, tensor_summary

_ROWS, _SIZE = 8, 16  # fewest samples of a batch, and numbers of a sample, to compare them
_IN_A_ROW = 3


class IdenticalSamples(EventRule, code="TC513", aliases=("samples-alike",)):
    """identical-samples: a dataset returns the same sample for different indices.

    What it checks:
        The samples of a batch differ if their indices and labels differ.

    Why it matters:
        The model sees one input with many labels, and can only learn how frequent each label is.

    Fires on:
        All of these need three consecutive batches of 8 samples or more.

        - A __getitem__ that fills and returns one shared buffer, so all rows hold the last sample.
        - A __getitem__ that uses another index than its argument.

    Stays quiet on:
        - Batches whose labels are also equal, e.g. of a sample that is repeated on purpose.
        - Indices that the sampler repeats.
        - Constant inputs beside others (grids, masks, cameras).
        - Small samples.
        - Streams.

    Fix:
        Return a new tensor for each index: copy the content of the buffer.

    Source:
        https://docs.pytorch.org/docs/stable/generated/torch.from_numpy.html (memory is shared)
    """

    title = "All samples in a batch of {variables} are the same"
    likely_cause = (
        "__getitem__ of the dataset may return one shared buffer, or read at a fixed position."
    )
    fix = "Return a copy of the sample that belongs to the index."
    needs = Needs(kinds=frozenset({"batch"}), stats=frozenset({"batch"}))
    _streaks: dict[tuple[str, str], _Streak] = fresh(dict)
    _last: dict[tuple[str, str], Mapping[str, float]] = fresh(dict)

    def judge(self, event: Event) -> list[Violation]:
        if not isinstance(event, BatchEvent) or len(set(event.indices)) < _ROWS:
            return []
        if len(set(event.indices)) < len(event.indices):
            return []
        tensors = {path: tensor_summary(value) for path, value in event.leaves.items()}
        leaves = {
            path: tensor
            for path, tensor in tensors.items()
            if tensor is not None and tensor.shape and tensor.shape[0] == event.drawn
        }
        compared = {path: t for path, t in leaves.items() if number(t, "alike") is not None}
        if not compared:
            return []
        self.triggered += 1
        found: list[Violation] = []
        for path, tensor in compared.items():
            key = (event.loader, path)
            stats = {name: number(tensor, name) or 0 for name in ("min", "max", "mean")}
            is_other = self._last.get(key) != stats
            self._last[key] = stats
            if not _is_odd(path, tensor, leaves, is_other=is_other):
                self._streaks.pop(key, None)
                continue
            streak = self._streaks.setdefault(key, _Streak())
            streak.count += 1
            streak.first = streak.first or event
            if streak.count == _IN_A_ROW:
                found += self.found(
                    streak.first,
                    subject=Subject(api=DATA_LOADER, variable=streak.first.loader),
                    symptom=Symptom.REPEATED_DATA,
                    message=f"{streak.first.loader} draws {streak.first.drawn} samples with "
                    f"different indices, but {path} holds the same sample in all rows",
                    expected="each index returns its own sample",
                    observed=f"all {tensor.shape[0]} rows of {path} are equal",
                )
        return found


@dataclass(slots=True)
class _Streak:
    count: int = 0
    first: BatchEvent | None = None


def _is_odd(
    path: str, tensor: TensorSummary, leaves: Mapping[str, TensorSummary], *, is_other: bool
) -> bool:
    """Whether equal rows are a fault: no other tensor of the batch can be the actual input.

    is_other: whether the tensor differs from that of the batch before.
    """
    if number(tensor, "alike") != 1 or math.prod(tensor.shape[1:]) < _SIZE:
        return False
    if number(tensor, "min") == number(tensor, "max"):
        return False
    # A tensor with equal rows may share the buffer
    others = [o for name, o in leaves.items() if name != path and number(o, "alike") != 1]
    if not all(len(other.shape) == 1 and other.dtype == "int64" for other in others):
        return False
    if not others:
        return is_other and tensor.dtype.startswith(("float", "bfloat"))
    return any(number(other, "min") != number(other, "max") for other in others)


_PROOF = 8  # repeated samples, and new samples after them
_MOST = 1 << 16  # indices stored for an epoch
_SAMPLERS = frozenset(
    {
        "torch.utils.data.sampler.RandomSampler",
        "torch.utils.data.sampler.SubsetRandomSampler",
        "builtins.list",
    }
)


class SampleRedrawn(LoaderRule, code="TC514", severity="info", aliases=("drawn-again",)):
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
    _epochs: dict[tuple[int, str], _Epoch] = fresh(dict)

    def observe(self, event: Event) -> list[Violation]:
        if isinstance(event, BatchEvent):
            if event.sampler in _SAMPLERS and event.indices:
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
        elif isinstance(event, StepEvent):
            if not event.recorded:
                self._epochs.clear()
            found = []
            for key, epoch in self._epochs.items():
                if key in self.reported or epoch.first is None or epoch.after < _PROOF:
                    continue
                if key in self.training:
                    self.reported.add(key)
                    sampler = (epoch.first.sampler or "sampler").rpartition(".")[2]
                    found += self.found(
                        epoch.first,
                        stage="train",
                        subject=Subject(api=DATA_LOADER, variable=epoch.first.loader),
                        symptom=Symptom.ADVICE,
                        message=f"{epoch.first.loader} ({sampler}) draws samples of epoch "
                        f"{epoch.number} again before all others were drawn",
                        expected="each sample comes once in an epoch",
                        observed=f"{epoch.again} draws of earlier samples, and {epoch.after} new "
                        "samples later",
                    )
            return found
        return []


@dataclass(slots=True)
class _Epoch:
    number: int
    seen: set[int] = field(default_factory=set)
    again: int = 0
    after: int = 0  # new samples after enough others were repeated
    first: BatchEvent | None = None
