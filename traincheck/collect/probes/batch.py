"""The batch that a model is given: which dimension holds its samples, and how to change one."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import nn

from traincheck.collect.probes.base import Call
from traincheck.collect.probes.isolation import UnfitError
from traincheck.collect.tensors.fingerprint import fingerprint
from traincheck.collect.tensors.reading import (
    PLAIN_TYPES,
    is_a,
    items_of,
    modules_in,
    own,
    sequence_of,
    undispatched,
)

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
        attributes = own(part)
        tables = [attributes, attributes.get("_parameters") or {}, attributes.get("_buffers") or {}]
        for name, value in chain.from_iterable(table.items() for table in tables):
            if is_a(value, torch.Tensor) and (
                sum(length == size for length in value.shape) > 1 or _is_edges(value, size)
            ):
                return str(name)
    return ""


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


_FEWEST = 3
_SEQUENCES = (nn.RNNBase, nn.MultiheadAttention)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True, slots=True)
class Batch:
    """The inputs of a call as samples along dim 0.

    Attributes:
        given: arguments by position and by name.
        size: number of samples.
    """

    given: tuple[tuple[Any, ...], dict[str, Any]]
    size: int

    @property
    def is_ambiguous(self) -> bool:
        """Whether the second dimension of a sequence has the size of the first."""
        return any(
            tensor.dim() > 1 and tensor.shape[1] == self.size
            and (tensor.dim() > 2 or not tensor.is_floating_point())
            for tensor in leaves(self.given)
        )  # fmt: skip

    @classmethod
    def of(cls, call: Call) -> Batch:
        """The batch of a call.

        Raises:
            UnfitError: its samples are not known.
        """
        given = (call.args, call.kwargs)
        if holds_others(given):
            raise UnfitError("the inputs are in objects that cannot be rebuilt")
        tensors = [tensor for tensor in leaves(given) if tensor.dim()]
        if any(tensor.layout is not torch.strided or tensor.is_nested for tensor in tensors):
            raise UnfitError("an input is sparse or nested")
        sizes = {tensor.shape[0] for tensor in tensors} - {1}
        if len(sizes) > 1:
            raise UnfitError("the inputs have several leading sizes")
        size = max(sizes, default=0)
        if size < _FEWEST:
            raise UnfitError("a batch has fewer than three samples")
        is_square = [t.is_floating_point() and t.shape == (size, size) for t in tensors]
        if any(is_square) and len(tensors) > 1:
            raise UnfitError("an input is square, as a matrix of neighbors is")
        if any(t.dim() == 1 and _is_grouping(t) for t in tensors):
            raise UnfitError("an input assigns rows to samples")
        if any(
            tensor.dim() > 2 and tensor.shape[1] == 1 and size > 1 for tensor in tensors
        ) and any(isinstance(part, nn.RNNBase) for part in modules_in(call.module)):
            raise UnfitError("the inputs are sequences of one sample")
        if any(t.dim() > 1 and t.shape[1] == size for t in tensors) and size > _FEWEST:
            # One sample less: the size tells the dimensions apart
            given = mapped(given, lambda t: t[:-1] if t.dim() and t.shape[0] == size else t)
            size -= 1
        return cls(given, size)

    @classmethod
    def of_samples(cls, call: Call) -> Batch:
        """The same, if the model does not hold what relates its rows, as those of a graph.

        Raises:
            UnfitError: it does.
        """
        sizes = {t.shape[0] for t in leaves((call.args, call.kwargs)) if t.dim()} - {1}
        name = pairs_of_rows(call.module, max(sizes, default=0))
        if name:
            raise UnfitError(f"{name} of the model relates the rows of the inputs to each other")
        return cls.of(call)

    def mapped(self, change: Any, dim: int = 0) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The inputs with other samples. change: gets each tensor that holds samples."""

        def one(tensor: torch.Tensor) -> torch.Tensor:
            is_batch = tensor.dim() > dim and tensor.shape[dim] == self.size
            return change(tensor) if is_batch else tensor

        args, kwargs = mapped(self.given, one)
        return args, kwargs

    def other_than(self, row: int) -> int | None:
        """A sample that differs from this one; None if all are equal."""
        for other in range(self.size):
            if other != row and any(
                tensor.dim()
                and tensor.shape[0] == self.size
                and not tensor[row].equal(tensor[other])
                for tensor in leaves(self.given)
            ):
                return other
        return None


def with_row(row: int, other: int) -> Any:
    """A change of tensors: one sample becomes a copy of another."""

    def change(tensor: torch.Tensor) -> torch.Tensor:
        changed = tensor.detach().clone()
        changed[row] = changed[other]
        return changed

    return change


def _is_grouping(tensor: torch.Tensor) -> bool:
    """Whether it is sorted, with many repeated numbers, as the sample of each row is."""
    if tensor.is_floating_point() or tensor.dtype is torch.bool or tensor.numel() < 4:
        return False
    steps = tensor.diff()
    is_sorted = bool((steps >= 0).all())
    return is_sorted and bool((steps > 0).any()) and len(torch.unique(tensor)) * 2 <= tensor.numel()


class InnerBatches:
    """Checks, while a model runs, that layers which know their batch dim see the same samples."""

    def __init__(self, module: nn.Module, size: int) -> None:
        self.reason = ""
        self._size = size
        self._hooks = [
            part.register_forward_pre_hook(self._look)
            for part in modules_in(module)
            if isinstance(part, (*_SEQUENCES, *_CONVOLUTIONS))
        ]

    def remove(self) -> None:
        """Stop looking."""
        for hook in self._hooks:
            hook.remove()

    def _look(self, part: nn.Module, args: tuple[Any, ...]) -> None:
        given = args[0] if args else None
        if not isinstance(given, torch.Tensor):
            return
        if isinstance(part, _CONVOLUTIONS):
            whole, dim = len(part.kernel_size) + 2, 0
        else:
            whole, dim = 3, 0 if part.batch_first else 1
        if given.dim() < whole:
            self.reason = f"{type(part).__name__} is given a single sample"
        elif given.shape[dim] % self._size:
            self.reason = f"{type(part).__name__} has another number of samples than the batch"
