"""All samples of a batch are equal although different ones were drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from traincheck.readings.losses import number
from traincheck.rules.base.rule import EventRule
from traincheck.rules.shared.loaders import DATA_LOADER
from traincheck.schema.claims import Needs
from traincheck.schema.events import BatchEvent, Event
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

    def __init__(self) -> None:
        super().__init__()
        self._streaks: dict[tuple[str, str], _Streak] = {}
        self._last: dict[tuple[str, str], Mapping[str, float]] = {}

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
                found.append(self._violation(streak.first, path, tensor))
        return found

    def _violation(self, event: BatchEvent, path: str, tensor: TensorSummary) -> Violation:
        return self.violation(
            event,
            subject=Subject(api=DATA_LOADER, variable=event.loader),
            symptom=Symptom.REPEATED_DATA,
            message=(
                f"{event.loader} draws {event.drawn} samples with different indices, but {path} "
                "holds "
                "the same sample in all rows"
            ),
            expected="each index returns its own sample",
            observed=f"all {tensor.shape[0]} rows of {path} are equal",
        )


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
    if not all(_is_label(other) for other in others):
        return False
    if not others:
        return is_other and tensor.dtype.startswith(("float", "bfloat"))
    return any(number(other, "min") != number(other, "max") for other in others)


def _is_label(tensor: TensorSummary) -> bool:
    return len(tensor.shape) == 1 and tensor.dtype == "int64"
