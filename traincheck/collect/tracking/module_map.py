"""The model and the path of each module."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch

from traincheck.collect.tensors.reading import table_of
from traincheck.collect.tracking.naming import ByObject, LiveModules, ModelNames, Parts, unwrap
from traincheck.collect.tracking.tracked_model import TrackedModel


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
        root = TrackedModel(top, self._name(top, parents), on_death=self._on_death)
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

    def _name(self, top: torch.nn.Module, parents: dict[int, torch.nn.Module]) -> str:
        """The name of a root. The first created model of a class has the first name.

        The order of calls does not matter: a model that no optimizer holds keeps its name.
        """
        for other in self.created:
            if type(other) is type(top) and id(other) not in parents:
                self._names.name(other)
        return self._names.name(top)

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
