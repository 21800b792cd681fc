"""Tracked roots, usually outermost modules: variables, modules, and the thread that trains one."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, groupby
from threading import get_ident
from typing import Any, Generic, TypeVar

import torch

from traincheck.collect.tensors.reading import table_of
from traincheck.collect.tracking.naming import (
    ByObject,
    LiveModules,
    ModelNames,
    Parts,
    Slot,
    unwrap,
)
from traincheck.collect.tracking.staggered_scan import IdleState
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


class ModuleMap:
    """Path and root of every known module.

    Args:
        on_death: called with a root whose model is about to be freed.

    Attributes:
        created: all live modules.
        maps: number of times that paths were assigned.
    """

    def __init__(self, on_death: Callable[[TrackedModel], None]) -> None:
        self.created = LiveModules()
        self.maps = 0
        self._on_death = on_death
        self._names = ModelNames()
        self._modules = ByObject[tuple[weakref.ref[torch.nn.Module], str, TrackedModel]]()

    def root_of(self, module: torch.nn.Module) -> TrackedModel | None:
        """The root of a module, if known."""
        known = self._modules.get(id(module))
        return known[2] if known is not None and known[0]() is module else None

    def find(self, module: torch.nn.Module) -> tuple[str, TrackedModel]:
        """Path and root of a module that is being called; an unknown module becomes a root."""
        found = self._modules.get(id(module))
        if found is not None and found[0]() is module:
            return found[1], found[2]
        inner = unwrap(module)
        if inner is not module:
            path, root = self.find(inner)
            self._modules.keep(module, (weakref.ref(module), path, root))
            return path, root
        parents = self.parents()
        root, _ = self.new(self.top(module, parents), parents)
        return self._modules.table[id(module)][1], root

    def new(
        self, top: torch.nn.Module, parents: dict[int, torch.nn.Module]
    ) -> tuple[TrackedModel, Parts]:
        """A root for an unknown model, with the paths of its parts."""
        # The first created model of a class has the first name. The order of calls does not matter:
        # a model that no optimizer holds keeps its name.
        for other in self.created:
            if type(other) is type(top) and id(other) not in parents:
                self._names.name(other)
        root = TrackedModel(top, self._names.name(top), on_death=self._on_death)
        parts = Parts(top, root.name)
        self.map(root, parts)
        return root, parts

    def parents(self) -> dict[int, torch.nn.Module]:
        """The parent of each module, by the identity of the child."""
        live = list(self.created)
        return {
            id(child): m
            for m in live
            for child in table_of(m, "_modules").values()
            if child is not None
        }

    def top(self, module: torch.nn.Module, parents: dict[int, torch.nn.Module]) -> torch.nn.Module:
        """The outermost live module around this one: a part may be called before the whole."""
        seen = {id(module)}
        while id(module) in parents and id(parents[id(module)]) not in seen:
            module = parents[id(module)]
            seen.add(id(module))
        return unwrap(module)

    def child(
        self,
        module: torch.nn.Module,
        root: TrackedModel | None,
        caller: torch.nn.Module | None = None,
    ) -> str | None:
        """Path of a module called inside ``root``; None if it is not below it.

        caller: the module whose forward calls it. The root is not searched completely for each of
        many modules that are created where they are called.
        """
        found = self._modules.get(id(module))
        if found is not None and found[0]() is module:
            return found[1]
        top = root.ref() if root is not None else None
        if root is None or top is None:
            return None
        if root.checks:
            root.checks -= 1
        elif caller is None or not any(
            part is module for part in table_of(caller, "_modules").values()
        ):
            return None
        if not root.is_current():
            self.map(root, Parts(top, root.name))
            root.is_tracked = False  # the next track must find new modules
            found = self._modules.get(id(module))
            if found is not None and found[0]() is module:
                return found[1]
        return None

    def map(self, root: TrackedModel, parts: Parts) -> None:
        """Assign the paths of ``root`` to its modules."""
        self.maps += 1
        modules = self._modules
        for name, module in parts:
            known = modules.get(id(module))
            if known is None or known[0]() is not module or known[2] is root:
                modules.keep(module, (weakref.ref(module), name, root))
        root.consists_of(parts)
