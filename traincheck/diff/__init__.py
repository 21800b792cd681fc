"""Compare two recorded runs, the ranks of one, or a run and its resume: the first difference.

The package can be called: ``traincheck.diff("traces/a", "traces/b")`` is `library.diff`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from traincheck.diff.difference import Difference


class _Callable(ModuleType):
    """This package as a function."""

    def __call__(self, *args: Any, **options: Any) -> Difference:
        from traincheck.diff.library import diff

        return diff(*args, **options)


sys.modules[__name__].__class__ = _Callable
