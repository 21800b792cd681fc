"""Evidence that the rows of a model's inputs are samples, and not the nodes of one graph."""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterator
from typing import Any

import torch
from torch import nn

from traincheck.collect.probes.tree import leaves
from traincheck.collect.tensors.fingerprint import fingerprint
from traincheck.collect.tensors.reading import PLAIN_TYPES, is_a, modules_in, own, undispatched

GIVEN = "_traincheck_is_given_a_batch"  # attribute of a copy: its caller says that rows are samples
_MOST_MODELS, _MOST_CALLS = 16, 32


class Samples:
    """Compares the inputs of the first calls of each model."""

    def __init__(self) -> None:
        self._first: dict[int, list[Any]] = {}  # weak reference, calls, content of the first

    def called(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """A model is called, in any mode."""
        known = self._first.get(id(module))
        if known is None or known[0]() is not module:
            if len(self._first) < _MOST_MODELS:
                self._first[id(module)] = [weakref.ref(module), 1, _content(args, kwargs)]
        elif known[2] is not None and known[1] < _MOST_CALLS:
            known[1] += 1
            if _content(args, kwargs) != known[2]:
                known[2] = None

    def are_rows(self, module: nn.Module) -> bool:
        """Whether two calls had other rows, or a caller says that they are samples."""
        known = self._first.get(id(module))
        is_seen = known is not None and known[0]() is module and known[2] is None
        return is_seen or bool(own(module).get(GIVEN))


def pairs_of_rows(module: nn.Module, size: int) -> str:
    """The name of a tensor of the model that relates rows to each other; empty if there is none.

    It has a number for each pair of rows, or lists pairs of them.
    """
    for part in modules_in(module) if size else ():
        if type(part).__module__.startswith("torch.nn."):
            continue
        for name, tensor in _tensors(part):
            if sum(length == size for length in tensor.shape) > 1 or _is_edges(tensor, size):
                return name
    return ""


def _tensors(part: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    attributes = own(part)
    tables = [attributes, attributes.get("_parameters") or {}, attributes.get("_buffers") or {}]
    for table in tables:
        for name, value in table.items():
            if is_a(value, torch.Tensor):
                yield name, value


def _is_edges(tensor: torch.Tensor, size: int) -> bool:
    if tensor.dtype is not torch.int64 or tensor.dim() != 2 or 2 not in tensor.shape:
        return False
    return tensor.numel() > 2 and tensor.device.type == "cpu" and int(tensor.max()) == size - 1


def _content(args: Any, kwargs: Any) -> list[Hashable]:
    with undispatched():
        return [
            (tuple(tensor.shape), fingerprint(tensor) if tensor.is_cpu else None)
            if type(tensor) in PLAIN_TYPES
            else None
            for tensor in leaves((args, kwargs))
        ]
