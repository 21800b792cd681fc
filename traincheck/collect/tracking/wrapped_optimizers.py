"""The id of an optimizer, also if a framework has wrapped it.

Accelerate, Lightning and Fabric wrap each optimizer, and so do searches for flat minima. All
instruments use this module, so that none compares a wrapper with the wrapped optimizer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch.optim import Optimizer

from traincheck.collect.tensors.reading import groups_of, has_groups, is_a, own

_INNER = ("optimizer", "_optimizer")  # attribute in schedulers and wrappers of frameworks
_MAX_DEPTH = 3


def layers(given: Any) -> Iterator[Any]:
    """``given``, and the optimizers that it wraps, from the outside in."""
    for _ in range(_MAX_DEPTH + 1):
        yield given
        values = own(given)
        inner = next((values[n] for n in _INNER if n in values), None)
        if not is_a(inner, Optimizer):
            break
        given = inner


def innermost(given: Any) -> Optimizer | None:
    """The optimizer inside schedulers and wrappers; None if there is none."""
    *_, found = layers(given)
    return found if is_a(found, Optimizer) and has_groups(found) else None


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
    groups = groups_of(given) if has_groups(given) else None
    if groups is None:
        return None
    return next((name for name, found in known if groups_of(found) is groups), None)
