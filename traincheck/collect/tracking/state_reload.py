"""Count the values of an optimizer or a scheduler that a load is about to change.

Accelerate loads the state of each optimizer that it prepares into the same optimizer. Such a load
changes nothing, so it does not mean that a run resumes another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch

from traincheck.collect.tensors.fingerprint import fingerprint
from traincheck.collect.tensors.reading import groups_of, state_of

_PLAIN = frozenset({int, float, bool, str, type(None)})
_MAX_DEPTH = 5
_UNKNOWN = object()
_Count: TypeAlias = int | None  # None if a value is on a device: comparing would wait for it


def of_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> _Count:
    """Number of values of groups and state that differ from those of the optimizer.

    Returns None if unknown: the state has another form, or values are on a device.
    """
    groups, given = groups_of(optimizer), state.get("param_groups")
    entries = state.get("state")
    if not isinstance(given, list) or not isinstance(entries, Mapping):
        return None
    if [len(group["params"]) for group in groups] != [len(group["params"]) for group in given]:
        return None  # the load raises
    pairs = [
        (entries.get(key), state_of(optimizer, parameter))
        for told, group in zip(given, groups)
        for key, parameter in zip(told["params"], group["params"])
    ]
    counts = [_compare(new or {}, old or {}) for new, old in pairs]
    counts += [_compare(_hyper(told), _hyper(group)) for told, group in zip(given, groups)]
    return _total(counts)


def of_scheduler(scheduler: Any, state: Mapping[str, Any]) -> _Count:
    """Number of values that differ from those of the scheduler; None if unknown."""
    own = vars(scheduler)
    return _total([_compare(value, own.get(key, _UNKNOWN)) for key, value in state.items()])


def _hyper(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}


def _total(counts: list[_Count]) -> _Count:
    known = sum(count for count in counts if count is not None)
    return None if not known and None in counts else known


def _compare(new: Any, old: Any, depth: int = 0) -> _Count:
    """Number of values that differ. A value that cannot be compared counts as different."""
    if new is old:
        return 0
    if isinstance(new, torch.Tensor) and isinstance(old, torch.Tensor):
        return _compare_tensors(new, old)
    if type(new) in _PLAIN and type(old) in _PLAIN:
        return int(new != old)
    if new is None and callable(old):  # a function, which is not saved
        return 0
    if depth >= _MAX_DEPTH:
        return 1
    if isinstance(new, Mapping):
        inner = old if isinstance(old, Mapping) else getattr(old, "__dict__", None)
        if not isinstance(inner, Mapping):
            return 1
        keys = dict.fromkeys([*new, *(inner if inner is old else ())])
        pairs = [(new.get(key, _UNKNOWN), inner.get(key, _UNKNOWN)) for key in keys]
    elif isinstance(new, (list, tuple)) and isinstance(old, (list, tuple)) and len(new) == len(old):
        pairs = list(zip(new, old))
    else:
        return 1
    return _total([_compare(one, other, depth + 1) for one, other in pairs])


def _compare_tensors(new: torch.Tensor, old: torch.Tensor) -> _Count:
    if (new.shape, new.dtype) != (old.shape, old.dtype):
        return 1
    if not (new.is_cpu and old.is_cpu):
        return None
    return int(fingerprint(new) != fingerprint(old))
