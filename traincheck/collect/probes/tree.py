"""Tensors within arguments and results: tuples, dicts, dataclasses, outputs of libraries."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

_DEPTH = 6
_WIDTH = 256


def leaves(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """The tensors within a value, in a fixed order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth < _DEPTH:
        for part in _parts(value):
            yield from leaves(part, depth + 1)


def mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor], depth: int = 0) -> Any:
    """The same value with other tensors. Objects of other classes are returned as they are."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if depth >= _DEPTH:
        return value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(part, change, depth + 1) for part in value))
    if type(value) in (list, tuple):
        return type(value)(mapped(part, change, depth + 1) for part in value)
    if type(value) is dict:
        return {key: mapped(part, change, depth + 1) for key, part in value.items()}
    return value


def holds_others(value: Any, depth: int = 0) -> bool:
    """Whether tensors are in objects that `mapped` does not rebuild."""
    if isinstance(value, torch.Tensor) or depth >= _DEPTH:
        return False
    if isinstance(value, (list, tuple)) or type(value) is dict:
        return any(holds_others(part, depth + 1) for part in _parts(value))
    return any(True for _ in leaves(value))


def _parts(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return list(value[:_WIDTH])
    if isinstance(value, Mapping):
        return list(value.values())[:_WIDTH]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, each.name, None) for each in dataclasses.fields(value)]
    return []
