"""Numbers of batches, arguments of losses and layers, parameters, and results of activations."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.linalg import vector_norm

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


SMALL = 1 << 16  # elements of a result; of larger ones, shares are taken of the first elements only
_SATURATED = 0.005  # of the range
_IMAGE = 4  # dims of a batch of images: (N, C, H, W)


@dataclass(frozen=True, kw_only=True)  # no slots: dynamo of torch 2.4 makes weak references
class Activation:
    """One activation function.

    Attributes:
        off: a unit is off if none of its elements over the whole batch is above this; the slope
            there is zero, or that of the leak. None if no unit can be off.
        floor: and none is below this.
        limits: range of the results, if both sides are flat.
        margin: share of the range.
    """

    off: float | None = None
    floor: float = -math.inf
    limits: tuple[float, float] | None = None
    margin: float = _SATURATED
    alpha: str | None = None  # attribute of a module that scales ``off``

    def of(self, module: nn.Module) -> Activation:
        """The function of a module that has its own scale."""
        scale = getattr(module, self.alpha, None) if self.alpha else None
        if not isinstance(scale, (int, float)) or self.off is None:
            return self
        return replace(self, off=self.off * scale)


_ZERO = Activation(off=0.0)
_LEAK = Activation(off=0.0)
# Far to the left these return to zero; near it the slope is a few percent at most.
_SMOOTH = Activation(off=0.0, floor=-1e-3)
_EXPONENTIAL = Activation(off=-0.99, alpha="alpha")
_SELU = Activation(off=-0.99 * 1.7580993)

MODULES: dict[type[Any], Activation] = {
    nn.ReLU: _ZERO,
    nn.ReLU6: _ZERO,
    nn.Threshold: _ZERO,
    nn.Hardswish: _SMOOTH,
    nn.LeakyReLU: _LEAK,
    nn.PReLU: _LEAK,
    nn.RReLU: _LEAK,
    nn.ELU: _EXPONENTIAL,
    nn.CELU: _EXPONENTIAL,
    nn.SELU: _SELU,
    nn.GELU: _SMOOTH,
    nn.SiLU: _SMOOTH,
    nn.Mish: _SMOOTH,
    nn.Tanh: Activation(limits=(-1.0, 1.0)),
    nn.Hardtanh: Activation(limits=(-1.0, 1.0)),
    nn.Sigmoid: Activation(limits=(0.0, 1.0)),
    nn.Hardsigmoid: Activation(limits=(0.0, 1.0)),
}
_FUNCTIONAL = "torch.nn.functional."
_NAMES = {
    "relu": nn.ReLU, "relu6": nn.ReLU6, "hardswish": nn.Hardswish, "leaky_relu": nn.LeakyReLU,
    "prelu": nn.PReLU, "rrelu": nn.RReLU, "elu": nn.ELU, "celu": nn.CELU, "selu": nn.SELU,
    "gelu": nn.GELU, "silu": nn.SiLU, "mish": nn.Mish, "tanh": nn.Tanh, "hardtanh": nn.Hardtanh,
    "sigmoid": nn.Sigmoid, "hardsigmoid": nn.Hardsigmoid,
}  # fmt: skip
FUNCTIONS: dict[str, Activation] = {
    **{
        f"{_FUNCTIONAL}{name}{end}": MODULES[cls]
        for name, cls in _NAMES.items()
        for end in ("", "_")
        if hasattr(nn.functional, name + end)
    },
    **{
        f"{holder}{name}{end}": MODULES[cls]
        for name, cls in (("relu", nn.ReLU), ("tanh", nn.Tanh), ("sigmoid", nn.Sigmoid))
        for holder, ends in (("torch.", ("",)), ("torch.Tensor.", ("", "_")))
        for end in ends
    },
}


def share_of_units(
    tensor: torch.Tensor, activation: Activation
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Minimum, maximum, and the share of units that are off over the whole batch.

    Units are the channels of images and volumes, else the last dim.
    """
    if activation.off is None or tensor.dim() <= 1:
        low, high = torch.aminmax(tensor)
        return low, high, None
    unit = 1 if tensor.dim() >= _IMAGE else tensor.dim() - 1
    rest = [dim for dim in range(tensor.dim()) if dim != unit]
    most, least = tensor.amax(rest), tensor.amin(rest)
    off = (most <= activation.off) & (least >= activation.floor)
    return least.min(), most.max(), off.to(torch.float32).mean()


def of_activation(tensor: torch.Tensor, activation: Activation) -> dict[str, torch.Tensor]:
    """Numbers of the result of an activation, each with zero dims."""
    tensor = tensor.detach()
    low, high, dead = share_of_units(tensor, activation)
    some = tensor.reshape(-1)[:SMALL] if tensor.is_contiguous() else tensor
    taken = {"min": low, "max": high, "nonfinite": high}
    taken["zeros"] = (some == 0).to(torch.float32).mean()
    if dead is not None:
        taken["dead"] = dead
    if activation.limits is not None:
        bottom, top = activation.limits
        near = (top - bottom) * activation.margin
        flat = (some >= top - near) | (some <= bottom + near)
        taken["saturated"] = flat.to(torch.float32).mean()
    return taken
