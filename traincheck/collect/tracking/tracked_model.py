"""What variables hang from, an outermost module as a rule, and the thread that works with it."""

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
_MOST_CHECKS = 256  # and then one in each forward
_values: Any = methodcaller("values")  # not of dict: TorchScript modules have something else

# Where a tensor is kept: in a dict of a module, under this key
Slot: TypeAlias = tuple[MutableMapping[str, Any], str]


class TrackedModel:
    """An outermost module and the variables below it; or tensors that an optimizer holds loose.

    It keeps dicts of modules, never a module, and lets go of them, and so of the tensors in them,
    when the module dies. Of loose tensors it keeps none.

    Args:
        holder: the module, or the optimizer.
        name: what the names of the variables begin with.
        is_unowned: no module owns the variables.
        on_death: called when the module is about to go, while its tensors are still there.

    is_lent: other tensors stand in the place of its parameters for one call. thread: that trains
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
        forget = _forget  # models that a package holds outlive the names of this file
        self.ref: weakref.ref[Any] = weakref.ref(holder, lambda _: forget(own()))
        self.name = name
        self.on_death = on_death
        self.is_unowned = is_unowned
        self.thread = this_thread()
        self.is_tracked = False
        self.is_lent = False
        self.rest = IdleState()
        self.checks = _MOST_CHECKS
        self.size = 0
        self.first_gradient: tuple[weakref.ref[torch.Tensor], int] | None = None
        # Dicts of its modules, and what was in them: how many, under which keys, which objects
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

        All dicts are compared at once in C: a fifth of the time that a look at each entry takes.
        """
        return self.seen == self.look()

    def look(self) -> tuple[list[int], list[str], list[int]]:
        """What is in the dicts now."""
        holders = self.holders
        objects = chain.from_iterable(map(_values, holders))
        return list(map(len, holders)), list(chain.from_iterable(holders)), list(map(id, objects))


def this_thread() -> int | None:
    """The running thread; None of one that Python did not start, as are those of autograd.

    They run hooks, and what a checkpoint computes again, while the thread they work for waits.
    """
    here = get_ident()
    known = _ACTIVE.get(here)
    return None if known is None or isinstance(known, threading._DummyThread) else here


def still_there(threads: Iterable[int]) -> set[int]:
    """Those of some threads that have not ended."""
    return {thread for thread in threads if thread in _ACTIVE}


def _forget(root: TrackedModel | None) -> None:
    """A root is dead: what replaces it may ask for names, nobody for tensors."""
    if root is None:
        return
    if root.on_death is not None:
        root.on_death(root)
    root.holders = []
    root.parameters = {n: ({}, key, p, g) for n, (_, key, p, g) in root.parameters.items()}
    root.buffers = {n: ({}, key, b) for n, (_, key, b) in root.buffers.items()}
