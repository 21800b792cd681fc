"""Profiles of layers: read from traces, shown as a tree, table, JSON or CSV, and compared.

The package can be called: ``traincheck.profile(model)`` is `in_process.profile`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from traincheck.profile.in_process import ProfileRun


class _Callable(ModuleType):
    """This package as a function."""

    def __call__(self, *subjects: Any, **options: Any) -> ProfileRun:
        from traincheck.profile.in_process import profile

        return profile(*subjects, **options)


sys.modules[__name__].__class__ = _Callable
