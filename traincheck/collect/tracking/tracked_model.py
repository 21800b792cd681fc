"""A tracked root, usually an outermost module: its variables, and the thread that trains it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from itertools import chain
from operator import methodcaller
from threading import get_ident
from typing import Any, TypeAlias

import torch

from traincheck.collect.tracking.idle_models import IdleState
from traincheck.collect.tracking.tracked_tensor import TrackedTensor

_ACTIVE: Mapping[int, threading.Thread] = getattr(threading, "_active", {})
_MOST_CHECKS = 256  # then one in each forward
_values: Any = methodcaller("values")  # not dict: TorchScript modules have another type

# Owner of a tensor: a dict of a module, and the key
Slot: TypeAlias = tuple[MutableMapping[str, Any], str]


class TrackedModel:
    """An outermost module and its variables; or the tensors of an optimizer outside modules.

    It keeps dicts of modules, never a module. It releases them, and so their tensors, when the
    module dies. It keeps no tensors outside modules.

    Args:
        holder: the module, or the optimizer.
        name: prefix of the names of the variables.
        is_unowned: no module owns the variables.
        on_death: called when the module is about to be freed, while its tensors still exist.

    has_functional_params: other tensors replace its parameters for one call. thread: that trains
    it: of the last forward with gradients, or update. size: elements of its parameters.
    first_gradient: which parameter has one, and its identity. checks: how often calls of modules
    that are not known may still ask whether they are below it by now.
    """

    def __init__(
        self,
        holder: Any,
        name: str,
        *,
        is_unowned: bool = False,
        on_death: Callable[[TrackedModel], None] | None = None,
    ) -> None:
        own = weakref.ref(self)
        forget = _forget  # models that a package holds outlive the globals of this module
        self.ref: weakref.ref[Any] = weakref.ref(holder, lambda _: forget(own()))
        self.name = name
        self.on_death = on_death
        self.is_unowned = is_unowned
        self.thread = this_thread()
        self.is_tracked = False
        self.has_functional_params = False
        self.rest = IdleState()
        self.checks = _MOST_CHECKS
        self.size = 0
        self.first_gradient: tuple[weakref.ref[torch.Tensor], int] | None = None
        # Dicts of its modules, and their last content: sizes, keys and objects
        self.holders: list[Any] = []
        self.seen: tuple[list[int], list[str], list[int]] = ([], [], [])
        self.parameters: dict[
            str, tuple[MutableMapping[str, Any], str, TrackedTensor, TrackedTensor]
        ] = {}
        self.buffers: dict[str, tuple[MutableMapping[str, Any], str, TrackedTensor]] = {}

    def called(self) -> None:
        """A forward begins."""
        self.rest.called()
        self.checks = self.checks or 1

    def is_current(self) -> bool:
        """Whether modules and parameters are still the objects that were found.

        All dicts are compared at once in C: a fifth of the time of a loop over entries.
        """
        return self.seen == self.snapshot()

    def snapshot(self) -> tuple[list[int], list[str], list[int]]:
        """The present contents of the dicts."""
        holders = self.holders
        objects = chain.from_iterable(map(_values, holders))
        return list(map(len, holders)), list(chain.from_iterable(holders)), list(map(id, objects))


def this_thread() -> int | None:
    """The running thread; None if Python did not start it, as with those of autograd.

    These run hooks and the recomputation of checkpoints, while the calling thread waits.
    """
    here = get_ident()
    known = _ACTIVE.get(here)
    return None if known is None or isinstance(known, threading._DummyThread) else here


def still_there(threads: Iterable[int]) -> set[int]:
    """The given threads that have not ended."""
    return {thread for thread in threads if thread in _ACTIVE}


def _forget(root: TrackedModel | None) -> None:
    """A root is dead: its successor may need its names, and no code needs its tensors."""
    if root is None:
        return
    if root.on_death is not None:
        root.on_death(root)
    root.holders = []
    root.parameters = {n: ({}, key, p, g) for n, (_, key, p, g) in root.parameters.items()}
    root.buffers = {n: ({}, key, b) for n, (_, key, b) in root.buffers.items()}
