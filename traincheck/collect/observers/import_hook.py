"""Run an action when a module has been imported, without importing it."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any


class ImportHook(importlib.abc.MetaPathFinder):
    """A meta path finder. Its owner handles modules that are already imported.

    Args:
        covers: whether the action applies to the module of this name.
        action: called with the imported module.
        fault: called with an error of either.
    """

    def __init__(
        self,
        covers: Callable[[str], bool],
        action: Callable[[types.ModuleType], None],
        fault: Callable[[Callable[..., Any], Exception], None],
    ) -> None:
        self._covers = covers
        self.action = action
        self.fault = fault

    def install(self) -> None:
        """Watch imports from now on."""
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Stop watching. May be called twice: a fault may have removed its owner before the end."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        try:
            if not self._covers(name):
                return None
        except Exception as error:  # training must go on whatever we got wrong
            self.fault(self._covers, error)
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: Any, finder: ImportHook) -> None:
        self._loader = loader
        self._finder = finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        made: types.ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: types.ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self._loader  # as before
        self._loader.exec_module(module)
        try:
            self._finder.action(module)
        except Exception as error:  # training must go on whatever we got wrong
            self._finder.fault(self._finder.action, error)
