"""Read large unchanged tensors in shares, a few in each step.

A scan reads all of each tensor. For a frozen model of some gigabytes that takes as long as the
step, and finds the same content again. So some tensors are read in full in some steps only, a share
of them in each. These are large parameters without a gradient, and large buffers, that were the
same in many scans in a row. A new address, version or probe shows a write, and ends this
(docs/adr/0005).
"""

from __future__ import annotations

from typing import TypeAlias

import torch

from traincheck.collect.tensors.reading import LOW, as_plain, has_memory
from traincheck.collect.tracking.tracked_tensor import BUFFER, PARAMETER, TrackedTensor
from traincheck.handlers import give_back

_LARGE = 1 << 20  # bytes; reading less takes no longer than the tests in this module
_SHARE = 32 << 20  # bytes that are read in a step: 1.5 ms
_CALM = 8  # steps with full scans before the first that is skipped

Found: TypeAlias = list[tuple[TrackedTensor, torch.Tensor]]
Hints: TypeAlias = tuple[object, ...]


class LargeTensor:
    """The last scan of a large tensor, and in how many steps in a row it was the same.

    turn: count of the step in which it was last scanned.
    """

    __slots__ = ("digest", "hints", "steps", "turn")

    def __init__(self, hints: Hints, digest: str | None, turn: int) -> None:
        self.hints, self.digest, self.turn, self.steps = hints, digest, turn, 0


class StaggeredScan:
    """The large tensors that need no scan in this step."""

    def __init__(self) -> None:
        self._has_large = False
        self._step: int | None = None
        self._round = 0  # counts steps in which there were looks

    def register(self, tensor: torch.Tensor) -> None:
        """A tensor will be followed."""
        self._has_large = self._has_large or _size(tensor) >= _LARGE

    def due(self, step: int | None, found: Found) -> Found:
        """The items of ``found`` that a scan must read now: all except a part of the large ones."""
        if not self._has_large:
            return found
        if step != self._step:
            self._step, self._round = step, self._round + 1
        # All except one share of the bytes, a different share in each step
        resting = [pair for pair in found if self.is_stable(*pair)]
        sizes = [_size(tensor) for _, tensor in resting]
        shares = sum(sizes) // _SHARE + 1
        left_out, before = set(), 0
        for (variable, _), size in zip(resting, sizes):
            is_theirs = before // _SHARE % shares == self._round % shares
            if not is_theirs or variable.rested.turn == self._round:
                left_out.add(id(variable))
            else:
                variable.rested.turn = self._round
            before += size
        return [pair for pair in found if id(pair[0]) not in left_out]

    def is_stable(self, variable: TrackedTensor, tensor: torch.Tensor) -> bool:
        """Whether a large tensor has been as it is for so long that a look may be left out."""
        # No optimizer changes it: they skip a parameter without a gradient
        is_left_alone = self._has_large and (
            variable.role == BUFFER or (variable.role == PARAMETER and tensor.grad is None)
        )
        if not is_left_alone or _size(tensor) < _LARGE:
            return False
        known: LargeTensor | None = variable.rested
        hints = _hints(variable, tensor)
        if hints is None:
            return False
        if (
            known is None
            or variable.digest is None
            or known.digest != variable.digest
            or known.hints != hints
        ):
            variable.rested = LargeTensor(hints, variable.digest, self._round)
            return False
        if known.turn != self._round and known.steps < _CALM:
            known.turn, known.steps = self._round, known.steps + 1
        return known.steps >= _CALM


def _size(tensor: torch.Tensor) -> int:
    try:
        return as_plain(tensor).nbytes
    except (RuntimeError, NotImplementedError) as error:  # for some layouts torch cannot tell
        give_back(error)
        return 0


def _hints(variable: TrackedTensor, tensor: torch.Tensor) -> Hints | None:
    """Values that change with nearly every write; None for tensors without them."""
    try:
        address, version = as_plain(tensor).data_ptr(), tensor._version
    except (RuntimeError, NotImplementedError) as error:
        give_back(error)  # created in inference mode, or without memory
        return None
    if address <= LOW and not has_memory(as_plain(tensor)):
        return None
    # Averages are often written through `.data`, which does not change the version
    probed = variable.probed(tensor) if variable.lies_as_before(tensor) else None
    return address, version, tensor.requires_grad, probed
