"""How far the first updates of a run move its parameters, by a sample of their elements.

An update is one step of an optimizer. Later updates are not measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from traincheck.collect.tensors.fingerprint import has_memory
from traincheck.collect.tensors.reading import PLAIN_TYPES

STEPS = 10  # the first ones
_SAMPLE = 1024  # elements of a parameter, evenly spread
_EXACT = frozenset({torch.float32, torch.float64})  # in other dtypes an update is lost in rounding


class UpdateSize:
    """Keeps samples from before an update until the scan after it. On the CPU only.

    is_requested: whether updates are still to be looked at. is_due: whether those of this step are.
    """

    def __init__(self, *, is_requested: bool) -> None:
        self.is_due = False
        self.is_requested = is_requested
        self._before: dict[int, torch.Tensor] = {}

    def begin_step(self, step: int | None) -> None:
        """A step begins."""
        self.is_requested &= step is None or step < STEPS
        self.is_due = self.is_requested and step is not None
        self._before.clear()

    def before(self, tensors: Iterable[torch.Tensor]) -> None:
        """An update is about to begin."""
        self._before = {id(tensor): _some(tensor).clone() for tensor in tensors if _is_fit(tensor)}

    def added(self, text: bytes, tensor: torch.Tensor) -> bytes:
        """Numbers of a parameter, with the largest change of an element since `before`."""
        was = self._before.pop(id(tensor), None)
        if was is None or not _is_fit(tensor):
            return text
        now = _some(tensor)
        if now.shape != was.shape or now.dtype is not was.dtype:
            return text
        moved = torch.dist(now, was, math.inf).item()
        if not math.isfinite(moved):
            return text
        return b'%b"moved":%b}' % (text[:-1] + b"," if text else b"{", repr(moved).encode())

    @property
    def has_any(self) -> bool:
        """Whether an update is being measured."""
        return bool(self._before)


def _is_fit(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) in PLAIN_TYPES
        and tensor.is_cpu
        and tensor.dtype in _EXACT
        and tensor.requires_grad
        and tensor.numel() > 0
        and tensor.is_contiguous()
        and has_memory(tensor)
    )


def _some(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.detach().view(-1)
    return flat[:: max(1, flat.numel() // _SAMPLE)]
