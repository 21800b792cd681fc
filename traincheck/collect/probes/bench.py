"""Run the model of a call in a copy of the process, again and again from one state."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch
from torch import nn

from traincheck.collect.probes.tree import leaves
from traincheck.collect.tensors.reading import tensors_in


class Bench:
    """A model in eval mode. Each forward begins with the same buffers and random states."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module.eval()
        torch.set_grad_enabled(True)  # without gradients, some layers take another path
        self._buffers = [
            (buffer, buffer.detach().clone()) for buffer in tensors_in(module, "_buffers")
        ]
        self._torch = torch.get_rng_state()
        self._python = random.getstate()
        numpy = sys.modules.get("numpy")
        self._numpy: Any = getattr(numpy, "random", None)
        self._numpy_state = self._numpy.get_state() if self._numpy is not None else None

    def forward(self, given: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
        """The result of the model for other inputs."""
        self.reset()
        args, kwargs = given
        return self.module(*args, **kwargs)

    @property
    def draws(self) -> bool:
        """Whether the last forward drew random numbers."""
        numpy = self._numpy
        return (
            not bool(torch.equal(torch.get_rng_state(), self._torch))
            or random.getstate() != self._python
            or (numpy is not None and not _equal(numpy.get_state(), self._numpy_state))
        )

    def reset(self) -> None:
        """Put buffers and random states back."""
        with torch.no_grad():
            for buffer, value in self._buffers:
                if not _same(buffer, value):
                    buffer.copy_(value)
        torch.set_rng_state(self._torch)
        random.setstate(self._python)
        if self._numpy is not None:
            self._numpy.set_state(self._numpy_state)


def rows(result: Any, size: int) -> list[torch.Tensor]:
    """The parts of a result that have one row for each sample: no scalars, no pairs of samples."""
    return [
        tensor.detach()
        for tensor in leaves(result)
        if tensor.dim() and tensor.shape[0] == size and tensor.is_floating_point()
        and tensor.layout is torch.strided
        and not (tensor.dim() == 2 and tensor.shape[1] == size)
    ]  # fmt: skip


def distance(first: torch.Tensor, second: torch.Tensor, scale: torch.Tensor | None = None) -> float:
    """The largest difference of two tensors, in units of the largest value.

    scale: whose largest value; None for the first tensor. NaN in both is no difference.
    """
    if first.shape != second.shape:
        return float("inf")
    if not first.numel():
        return 0.0
    mine, theirs = first.double(), second.double()
    largest = (mine if scale is None else scale.double()).abs().nan_to_num(0, 0, 0).max()
    apart = (mine - theirs).abs()
    apart = torch.where((mine == theirs) | (mine.isnan() & theirs.isnan()), 0.0, apart)
    return float(apart.nan_to_num(float("inf")).max() / largest.clamp_min(1e-12))


def _same(first: torch.Tensor, second: torch.Tensor) -> bool:
    return first.shape == second.shape and bool(torch.equal(first, second))


def _equal(first: Any, second: Any) -> bool:
    """Whether two states of numpy are equal."""
    return all(
        bool((a == b).all()) if hasattr(a, "all") else bool(a == b) for a, b in zip(first, second)
    )
