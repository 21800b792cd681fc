"""Scans that are left out: of large unchanged tensors, and of models that were not used.

Large tensors are read in shares. A scan reads all of each tensor. For a frozen model of some
gigabytes that takes as long as the step, and finds the same content again. So some tensors are read
in full in some steps only, a share of them in each. These are large parameters without a gradient,
and large buffers, that were the same in many scans in a row. A new address, version or probe shows
a write, and ends this (docs/adr/0005).

Each call that trains one model is followed by scans. If a program trains many models separately,
scanning all of them each time would take quadratic time. The version counter of a tensor is only a
hint. So the scan of an idle model is left out only if it could find nothing but a write that the
counter does not show, and not twice in one step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from operator import attrgetter
from typing import Any, Protocol, TypeAlias, TypeVar

import torch

from traincheck.collect.tensors.reading import LOW, as_plain, has_memory
from traincheck.collect.trace_writer.emitter import Emitter
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


_written: Callable[[torch.Tensor], Any] = attrgetter("_version", "requires_grad")
_grad: Callable[[torch.Tensor], torch.Tensor | None] = attrgetter("grad")

NO_ROOTS: frozenset[str] = frozenset()
Seen = tuple[int | None, list[Any]]  # in which step, and what


class _Resting(Protocol):
    """A `TrackedModel`."""

    name: str
    rest: IdleState

    @property
    def parameters(self) -> Any:
        """Its parameters: `Slots`."""


_R = TypeVar("_R", bound=_Resting)
Read = Callable[[], "list[torch.Tensor | None]"]
Keeps = Callable[["IdleState", "int | None", Read], bool]


def due(
    em: Emitter, live: list[_R], is_kept: Keeps, names: AbstractSet[str] = NO_ROOTS
) -> list[_R]:
    """The live roots that may have changed; those of ``names`` were written to."""
    if len(live) <= 1:
        return live
    step = em.clock.step
    return [r for r in live if r.name in names or not is_kept(r.rest, step, r.parameters.tensors)]


class IdleState:
    """The state of one model: whether an optimizer trains it, and its scans since.

    It is idle from a step of its optimizer until it is called.
    """

    __slots__ = ("_gradients", "_parameters", "_was_called", "_was_trained")

    def __init__(self) -> None:
        self._was_trained = self._was_called = False
        self._parameters: Seen | None = None
        self._gradients: Seen | None = None

    def called(self) -> None:
        """A forward begins: the next calls of the program may concern this model."""
        self._was_called, self._parameters, self._gradients = True, None, None

    def trained(self) -> None:
        """Its optimizer has stepped."""
        self._was_trained, self._was_called, self._gradients = True, False, None

    def keeps_parameters(self, step: int | None, read: Read) -> bool:
        """Whether a scan of parameters can be skipped."""
        seen = self._parameters
        return seen is not None and seen[0] == step and seen[1] == _parameters(read())

    def keeps_gradients(self, step: int | None, read: Read) -> bool:
        """Whether a scan of gradients and of requires_grad can be skipped."""
        seen = self._gradients
        return seen is not None and seen[0] == step and seen[1] == _gradients(read())

    def saw_parameters(self, step: int | None, read: Read) -> None:
        """All parameters were scanned."""
        if self._was_trained and step is not None:
            self._parameters = step, _parameters(read())

    def saw_gradients(self, step: int | None, read: Read) -> None:
        """All gradients were scanned."""
        if self._was_trained and not self._was_called and step is not None:
            self._gradients = step, _gradients(read())


def _parameters(held: Iterable[torch.Tensor | None]) -> list[Any]:
    try:
        tensors = [t for t in held if t is not None]
        return [*map(id, tensors), *map(_written, tensors)]
    except (RuntimeError, AttributeError) as error:  # inference mode: it counts no writes
        give_back(error)
        return [object()]  # equal to nothing else


def _gradients(held: Iterable[torch.Tensor | None]) -> list[Any]:
    try:
        tensors = [t for t in held if t is not None]
        grads = list(map(_grad, tensors))
        written = [grad._version for grad in grads if grad is not None]
        return [*map(id, tensors), *map(_written, tensors), *map(id, grads), *written]
    except (RuntimeError, AttributeError) as error:
        give_back(error)
        return [object()]
