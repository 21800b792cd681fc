"""The user's own packages, named with ``--instrument``: public functions and methods.

They are wrapped when the package is imported. Packages in the needs of a check are included.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from traincheck.collect.instruments._wrap import CallTemplates, function_wrapper
from traincheck.collect.instruments.base import Instrument
from traincheck.collect.instruments.functional import signature
from traincheck.collect.observers.import_hook import ImportHook


class Packages(Instrument):
    """Wraps the functions that a module defines, after its execution."""

    name = "packages"

    def is_wanted(self) -> bool:
        return bool(self.session.settings.packages)

    def install(self) -> None:
        self._imports = ImportHook(self.covers, self.wrap_module, self.session.fault)
        self._imports.install()
        for name, module in list(sys.modules.items()):
            if self.covers(name):
                self.wrap_module(module)

    def remove(self) -> None:
        self._imports.remove()
        super().remove()

    def covers(self, name: str) -> bool:
        """Whether a module belongs to a recorded package."""
        return any(
            name == package or name.startswith(f"{package}.")
            for package in self.session.settings.packages
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
            lambda f: function_wrapper(f, CallTemplates(api, names, defaults, self), self.session),
        )
