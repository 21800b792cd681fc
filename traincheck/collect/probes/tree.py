"""Tensors within arguments and results: tuples, dicts, dataclasses, outputs of libraries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from traincheck.collect.tensors.reading import is_a, items_of, own, sequence_of

_DEPTH = 6
_WIDTH = 256


def leaves(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """The tensors within a value, in a fixed order."""
    if is_a(value, torch.Tensor):
        yield value
    elif depth < _DEPTH:
        for part in _parts(value):
            yield from leaves(part, depth + 1)


def mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor], depth: int = 0) -> Any:
    """The same value with other tensors. Objects of other classes are returned as they are."""
    if is_a(value, torch.Tensor):
        return change(value)
    if depth >= _DEPTH:
        return value
    if is_a(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(part, change, depth + 1) for part in value))
    if type(value) in (list, tuple):
        return type(value)(mapped(part, change, depth + 1) for part in value)
    if type(value) is dict:
        return {key: mapped(part, change, depth + 1) for key, part in value.items()}
    return value


def holds_others(value: Any, depth: int = 0) -> bool:
    """Whether tensors are in objects that `mapped` does not rebuild."""
    if is_a(value, torch.Tensor) or depth >= _DEPTH:
        return False
    if is_a(value, (list, tuple)) or type(value) is dict:
        return any(holds_others(part, depth + 1) for part in _parts(value))
    return any(True for _ in leaves(value))


def _parts(value: Any) -> list[Any]:
    if (sequence := sequence_of(value, _WIDTH)) is not None:
        return list(sequence)
    if (items := items_of(value, _WIDTH)) is not None:
        return [item for _, item in items]
    if hasattr(type(value), "__dataclass_fields__"):
        return [own(value).get(name) for name in type(value).__dataclass_fields__]
    return []
