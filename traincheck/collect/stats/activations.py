"""The activation functions, and when a unit of one is off or at its limit."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

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
