"""The user's own packages, named with ``--instrument``: public functions and methods.

They are wrapped as the package is imported.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any

from traincheck.collect.instruments._base import Instrument
from traincheck.collect.instruments.functional import signature
from traincheck.collect.wrap import CallTemplates, function_wrapper


class Packages(Instrument):
    """A meta path finder that wraps what a module defines once it has been executed."""

    name = "packages"

    def is_wanted(self) -> bool:
        return bool(self.session.settings.instrument)

    def install(self) -> None:
        self._finder = _Finder(self)
        sys.meta_path.insert(0, self._finder)
        for name, module in list(sys.modules.items()):
            if self.covers(name):
                self.wrap_module(module)

    def remove(self) -> None:
        sys.meta_path.remove(self._finder)
        super().remove()

    def covers(self, name: str) -> bool:
        """Whether a module belongs to a package that is to be recorded."""
        return any(
            name == package or name.startswith(f"{package}.")
            for package in self.session.settings.instrument
        )

    def wrap_module(self, module: types.ModuleType) -> None:
        """Wrap the public functions and methods that ``module`` itself defines."""
        for name, found in list(vars(module).items()):
            if name.startswith("_") or getattr(found, "__module__", None) != module.__name__:
                continue
            if isinstance(found, types.FunctionType):
                self._wrap_function(module, name, f"{module.__name__}.{name}")
            elif isinstance(found, type):
                for method, body in list(vars(found).items()):
                    if (
                        isinstance(body, types.FunctionType)
                        and not method.startswith("_")
                        and method != "forward"
                    ):
                        self._wrap_function(
                            found, method, f"{module.__name__}.{found.__qualname__}.{method}"
                        )

    def _wrap_function(self, holder: Any, name: str, api: str) -> None:
        names, defaults = signature(getattr(holder, name), name)
        self.replace(
            holder,
            name,
            lambda f: function_wrapper(f, CallTemplates(api, names, defaults), self.session),
        )


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, instrument: Packages) -> None:
        self._instrument = instrument

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not self._instrument.covers(name):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._instrument)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: Any, instrument: Packages) -> None:
        self._loader = loader
        self._instrument = instrument

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        made: types.ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: types.ModuleType) -> None:
        self._loader.exec_module(module)
        try:
            self._instrument.wrap_module(module)
        except Exception as error:  # training must go on whatever we got wrong
            self._instrument.session.fault(self._instrument.wrap_module, error)
