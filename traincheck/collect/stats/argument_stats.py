"""Numbers of batches, of arguments of losses and layers, and of parameters."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import torch
from torch.linalg import vector_norm  # Tensor.norm calls this after ten microseconds of Python

from traincheck.collect.tensors.reading import FLOATS, HALF, INTS, PLAIN_TYPES, detached, unseen
from traincheck.schema.torch_api import IGNORED_LABEL

LARGE = 1 << 20  # elements of a batch that mean and std use: the first ones
DEAD_NORM = 1e-6  # of a row or filter without effect
_MOST_LABELS = 1000
_MOST_POSITIONS = 256  # that are looked at: the first
_NOTHING = 1e-12  # of a weight: masks of large numbers leave this, not only of infinity
_MANY_ROWS = 8  # of a batch, from which they are compared

_NO_DISPATCH = torch.Tensor.__torch_dispatch__

Taken = dict[str, torch.Tensor]  # of no dims


def as_plain(value: Any) -> torch.Tensor | None:
    """The tensor, or the inner tensor of a subclass that does not change torch's dispatch."""
    if type(value) in PLAIN_TYPES:
        return value  # type: ignore[no-any-return]
    if not isinstance(value, torch.Tensor) or type(value).__torch_dispatch__ is not _NO_DISPATCH:
        return None
    with unseen():
        return value.as_subclass(torch.Tensor)


def of_leaf(tensor: torch.Tensor, *, full: bool) -> Taken:
    """Numbers of a tensor of a batch. full: also its mean and standard deviation."""
    tensor = detached(tensor)
    taken = extremes(tensor)
    if tensor.dtype in FLOATS:
        if full:  # a third of the time that all of it takes
            some = tensor.reshape(-1)[:LARGE]
            some = some.float() if some.dtype in HALF else some
            taken["mean"] = some.mean()
            taken["std"] = std(some, taken["mean"])
    elif are_labels(tensor, taken):
        taken["top"] = torch.bincount(tensor).max() / len(tensor)
    return taken


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether programs typically create such a tensor: one value, or the numbers from 0."""
    tensor = detached(tensor)  # else what is computed here would be saved for a backward pass
    first, last = tensor.reshape(-1)[[0, -1]].tolist()
    if first == last:
        return bool((tensor == first).all())
    is_counted = tensor.dim() == 1 and first == 0 and last == len(tensor) - 1
    if not is_counted:
        return False
    counted = torch.arange(len(tensor), dtype=tensor.dtype, device=tensor.device)
    return torch.equal(tensor, counted)


def has_rows(tensor: torch.Tensor) -> bool:
    """Whether the rows of a batch tensor are samples to be compared."""
    return tensor.is_cpu and tensor.dim() > 1 and len(tensor) >= _MANY_ROWS


def share_alike(batch: torch.Tensor) -> torch.Tensor:
    """Share of rows that equal the first. If the last one differs, the others are not compared."""
    if not torch.equal(batch[0], batch[-1]):
        return torch.tensor(1 / len(batch), device=batch.device)
    return (batch == batch[:1]).flatten(1).all(1).to(torch.float32).mean()


def is_short_row(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a row of integers that Python counts faster than torch."""
    is_row = tensor.dtype is torch.int64 and tensor.dim() == 1
    return is_row and len(tensor) <= _MOST_LABELS and tensor.is_cpu


def of_row(tensor: torch.Tensor) -> dict[str, float]:
    """`of_leaf` of a short row of integers, in Python: a third of the time that torch takes."""
    counts = Counter(tensor.tolist())
    found: dict[str, float] = {"min": min(counts), "max": max(counts)}
    if found["min"] >= 0 and found["max"] < _MOST_LABELS:
        found["top"] = max(counts.values()) / len(tensor)
    return found


def are_labels(tensor: torch.Tensor, taken: Taken) -> bool:
    """Whether a tensor of a batch may be class labels."""
    is_row = tensor.is_cpu and tensor.dim() == 1 and tensor.dtype is torch.int64
    return is_row and taken["min"].item() >= 0 and taken["max"].item() < _MOST_LABELS


def of_weights(tensor: torch.Tensor) -> Taken:
    """Numbers of a parameter that show whether filters are dead and rows are equal."""
    tensor = tensor.detach()
    taken = of_leaf(tensor, full=True)
    whole = tensor.float() if tensor.dtype in HALF else tensor
    taken["norm"] = vector_norm(whole)
    if tensor.dim() > 1:
        rows = whole.reshape(len(tensor), -1)
        taken["dead"] = (vector_norm(rows, 2, 1) < DEAD_NORM).mean(dtype=torch.float32)
        taken["alike"] = (rows == rows[:1]).all(1).mean(dtype=torch.float32)
    return taken


def extremes(tensor: torch.Tensor) -> Taken:
    """Minimum and maximum; for floating point, also whether all values are finite."""
    low, high = torch.aminmax(tensor)
    taken = {"min": low, "max": high}
    if tensor.dtype in FLOATS:
        taken["nonfinite"] = high  # placeholder for the answer: `stats_text.finished` reads all
    return taken


def std(values: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
    """The standard deviation of values around their mean."""
    spread: torch.Tensor = vector_norm(values - mean) / math.sqrt(values.numel())
    return spread


def of_argument(tensor: torch.Tensor) -> Taken:
    """Numbers of an argument of a loss."""
    tensor = detached(tensor)
    taken = extremes(tensor)
    if tensor.dtype in FLOATS and tensor.dim() > 1:
        rows = tensor.sum(-1, dtype=torch.float32 if tensor.dtype in HALF else None)
        taken["row_sum_min"], taken["row_sum_max"] = torch.aminmax(rows)
    elif tensor.is_cpu and tensor.dtype in INTS and taken["min"].item() == IGNORED_LABEL:
        taken["ignored"] = (tensor == IGNORED_LABEL).to(torch.float32).mean()
    return taken


def share_hidden(weights: torch.Tensor) -> torch.Tensor:
    """Share of the attention weights to later positions that are almost zero, in one matrix."""
    head = weights[:_MOST_POSITIONS, :_MOST_POSITIONS]
    # Sums, not a mask as an index, which would wait for a device
    nothing = (head < _NOTHING).triu(1).sum(dtype=torch.float32)
    return nothing / torch.ones_like(head, dtype=torch.bool).triu(1).sum(dtype=torch.float32)
