"""Do something with a module once it has been imported, and never import it for that."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any


class ImportHook(importlib.abc.MetaPathFinder):
    """A meta path finder. Modules that are there already are for its owner to look after.

    Args:
        covers: whether something is to be done with the module of this name.
        action: what.
        fault: told of what goes wrong in it.
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
        """Look at what is imported from now on."""
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Look no longer. Twice is once: a fault may have taken its owner out before the end."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not self._covers(name):
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
            module.__spec__.loader = module.__loader__ = self._loader  # as it is without us
        self._loader.exec_module(module)
        try:
            self._finder.action(module)
        except Exception as error:  # training must go on whatever we got wrong
            self._finder.fault(self._finder.action, error)
