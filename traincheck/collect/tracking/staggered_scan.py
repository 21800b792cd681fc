"""Large tensors that training leaves alone are read in turns.

A look reads all of each tensor. Of a frozen model of some gigabytes that takes as long as the step
itself, to find the same as in the step before. So a large parameter without a gradient, or a large
buffer, that was the same in many looks in a row is read in full in some steps only, a share of them
in each, while nothing hints at a write: another address, version, or probe (docs/adr/0005).
"""

from __future__ import annotations

from typing import TypeAlias

import torch

from traincheck.collect.tensors.fingerprint import LOW, has_memory
from traincheck.collect.tracking.tracked_tensor import BUFFER, PARAMETER, TrackedTensor
from traincheck.handlers import give_back

_LARGE = 1 << 20  # bytes; reading less takes no longer than the tests made here
_SHARE = 32 << 20  # bytes that are read in a step: 1.5 ms
_CALM = 8  # steps of full looks before the first that is left out

Found: TypeAlias = list[tuple[TrackedTensor, torch.Tensor]]
Hints: TypeAlias = tuple[object, ...]


class LargeTensor:
    """What was seen of a large tensor, and in how many steps in a row.

    turn: in which step, by count, it was last looked at.
    """

    __slots__ = ("digest", "hints", "steps", "turn")

    def __init__(self, hints: Hints, digest: str | None, turn: int) -> None:
        self.hints, self.digest, self.turn, self.steps = hints, digest, turn, 0


class StaggeredScan:
    """Which large tensors need no look in this step."""

    def __init__(self) -> None:
        self._has_large = False
        self._step: int | None = None
        self._round = 0  # counts steps in which there were looks

    def register(self, tensor: torch.Tensor) -> None:
        """A tensor will be followed."""
        self._has_large = self._has_large or _size(tensor) >= _LARGE

    def due(self, step: int | None, found: Found) -> Found:
        """Those of ``found`` that a look shall read now: all but a part of the large ones."""
        if not self._has_large:
            return found
        if step != self._step:
            self._step, self._round = step, self._round + 1
        left_out = self._left_out([pair for pair in found if self.is_stable(*pair)])
        return [pair for pair in found if id(pair[0]) not in left_out]

    def is_stable(self, variable: TrackedTensor, tensor: torch.Tensor) -> bool:
        """Whether a large tensor has been as it is for so long that a look may be left out."""
        if not self._has_large or not _is_left_alone(variable, tensor):
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

    def _left_out(self, resting: Found) -> set[int]:
        """All but one share of the bytes, another one in each step."""
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
        return left_out


def _size(tensor: torch.Tensor) -> int:
    try:
        return tensor.nbytes
    except (RuntimeError, NotImplementedError) as error:  # of some layouts torch cannot tell
        give_back(error)
        return 0


def _is_left_alone(variable: TrackedTensor, tensor: torch.Tensor) -> bool:
    """Whether it is large, and no optimizer changes it: without a gradient they pass it by."""
    if variable.role == PARAMETER:
        return tensor.grad is None and _size(tensor) >= _LARGE
    return variable.role == BUFFER and _size(tensor) >= _LARGE


def _hints(variable: TrackedTensor, tensor: torch.Tensor) -> Hints | None:
    """What differs after nearly every write; None of tensors that do not tell."""
    try:
        address, version = tensor.data_ptr(), tensor._version
    except (RuntimeError, NotImplementedError) as error:
        give_back(error)  # made in inference mode, or without memory
        return None
    if address <= LOW and not has_memory(tensor):
        return None
    # Averages are often written through `.data`, which hides from the version
    probed = variable.probed(tensor) if variable.lies_as_before(tensor) else None
    return address, version, tensor.requires_grad, probed
