"""Skip the scan of models that were not used since the last scan.

Each call that trains one model is followed by scans. If a program trains many models separately,
scanning all of them each time would take quadratic time. The version counter of a tensor is only a
hint (docs/adr/0005). So a scan is skipped only if it could find nothing but a write that the
counter does not show, and not twice in one step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from operator import attrgetter
from typing import Any, Protocol, TypeVar

import torch

from traincheck.collect.trace_writer.emitter import Emitter
from traincheck.handlers import give_back

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
