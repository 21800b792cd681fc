"""A tracked root, usually an outermost module: its variables, and the thread that trains it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, groupby
from threading import get_ident
from typing import Any, Generic, TypeVar

import torch

from traincheck.collect.tracking.idle_models import IdleState
from traincheck.collect.tracking.naming import Slot
from traincheck.collect.tracking.tracked_tensor import TrackedTensor
from traincheck.handlers import give_back

_ACTIVE: Mapping[int, threading.Thread] = getattr(threading, "_active", {})
_MOST_CHECKS = 256  # then one in each forward
_values: Any = dict.values  # a third cheaper than to look the method up for each dict

_V = TypeVar("_V")
_own = object.__getattribute__  # calls no code of the module's class
_Snapshot = tuple[list[int], list[str], list[int]]
_GONE: _Snapshot = [-1], [], []


class Slots(Generic[_V]):
    """Tensors by their places, for repeated reading.

    A dict of a module leads to its children and parameters, and their attributes and hooks may lead
    back to the module. So nothing is kept but weak references, and dicts are fetched at each read.

    Args:
        table: attribute of modules that holds the tensors.
        found: by name, the slot of each and its variables.
    """

    def __init__(self, table: str, found: Mapping[str, tuple[Slot, _V]]) -> None:
        self._table = table
        self.variables = {name: variables for name, (_, variables) in found.items()}
        slots = [slot for slot, _ in found.values()]
        groups = [list(group) for _, group in groupby(slots, lambda slot: id(slot[0]))]
        self._owners = [
            (group[0][0], None if group[0][1] is None else [key for _, key in group])
            for group in groups
        ]

    def __iter__(self) -> Iterator[tuple[torch.Tensor | None, _V]]:
        """The present tensor of each place, with its variables."""
        return zip(self.tensors(), self.variables.values())

    def tensors(self) -> list[torch.Tensor | None]:
        """The present tensor of each place; None if it is gone, or its module is."""
        table = self._table
        found: list[torch.Tensor | None] = []
        for owner, keys in self._owners:
            if keys is None:
                found.append(owner())
                continue
            try:
                held = _own(owner(), table)
            except AttributeError as error:  # None: the module is gone
                give_back(error)
                held = {}
            for key in keys:  # few: a map would cost more, and so would `get`
                try:
                    found.append(held[key])
                except (KeyError, TypeError) as error:
                    give_back(error)
                    found.append(None)
        return found


class TrackedModel:
    """An outermost module and its variables; or the tensors of an optimizer outside modules.

    It keeps no module, no dict of one, and no tensor.

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
        # Its modules, and the last content of their dicts: sizes, keys and objects
        self._modules: list[weakref.ref[torch.nn.Module]] = []
        self._seen: _Snapshot = ([], [], [])
        # Each parameter with its variable and that of its gradient
        self.parameters: Slots[tuple[TrackedTensor, TrackedTensor]] = Slots("_parameters", {})
        self.buffers: Slots[TrackedTensor] = Slots("_buffers", {})

    def called(self) -> None:
        """A forward begins."""
        self.rest.called()
        self.checks = self.checks or 1

    def is_current(self) -> bool:
        """Whether modules and parameters are still the objects that were found.

        All dicts are compared at once in C: a fifth of the time of a loop over entries.
        """
        return self._seen == self._snapshot()

    def _snapshot(self) -> _Snapshot:
        """The present contents of the dicts."""
        tables: list[Any] = []
        try:
            for ref in self._modules:
                own = _own(ref(), "__dict__")
                tables += (own["_modules"], own["_parameters"])
            full = list(filter(None, tables))  # half of them are empty
            objects = list(map(id, chain.from_iterable(map(_values, full))))
        except (AttributeError, KeyError, TypeError) as error:
            give_back(error)  # a part is gone, or its dict is no dict any more
            return _GONE
        return list(map(len, tables)), list(chain.from_iterable(full)), objects

    def consists_of(self, parts: Iterable[tuple[str, torch.nn.Module]]) -> None:
        """Remember its modules as they are. Those of TorchScript do not change."""
        self._modules = [
            weakref.ref(module)
            for _, module in parts
            if isinstance(_own(module, "__dict__").get("_modules"), dict)
            and isinstance(_own(module, "__dict__").get("_parameters"), dict)
        ]
        self._seen = self._snapshot()

    def buffers_now(self) -> list[tuple[TrackedTensor, torch.Tensor]]:
        """Its buffers as they are now."""
        return [(variable, tensor) for tensor, variable in self.buffers if tensor is not None]


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
    if root is not None and root.on_death is not None:
        root.on_death(root)
