"""The error when the framework of a callback is not installed. Imports none of them."""

from __future__ import annotations

import importlib
from types import ModuleType

from traincheck.errors import MissingDependencyError


def load(*names: str, extra: str) -> ModuleType:
    """The first of these modules that is installed.

    Args:
        *names: of modules, the preferred one first.
        extra: the package to install.

    Raises:
        MissingDependencyError: none is installed.
    """
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise  # it is installed, and lacks one of its dependencies
    raise MissingDependencyError(f"{names[0]} is not installed", fix=f"pip install {extra}")
