"""The id of an optimizer, also if a framework has wrapped it.

Accelerate, Lightning and Fabric wrap each optimizer, and so do searches for flat minima. All
instruments use this module, so that none compares a wrapper with the wrapped optimizer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch.optim import Optimizer

_INNER = ("optimizer", "_optimizer")  # attribute in schedulers and wrappers of frameworks
_MAX_DEPTH = 3


def layers(given: Any) -> Iterator[Any]:
    """``given``, and the optimizers that it wraps, from the outside in."""
    for _ in range(_MAX_DEPTH + 1):
        yield given
        inner = next((vars(given)[n] for n in _INNER if n in getattr(given, "__dict__", ())), None)
        if not isinstance(inner, Optimizer):
            break
        given = inner


def innermost(given: Any) -> Optimizer | None:
    """The optimizer inside schedulers and wrappers; None if there is none."""
    *_, found = layers(given)
    return found if isinstance(found, Optimizer) and hasattr(found, "param_groups") else None


def owner_of(live: Iterable[tuple[str, Optimizer]], given: Any) -> str | None:
    """The id of the optimizer that ``given`` is, wraps, or shares parameter groups with.

    Args:
        live: ids and objects of the optimizers that are known.
        given: an optimizer, or an object that represents one.
    """
    known = list(live)
    for layer in layers(given):
        for name, found in known:
            if found is layer:
                return name
    groups = getattr(given, "param_groups", None)
    if groups is None:
        return None
    return next((name for name, found in known if found.param_groups is groups), None)
