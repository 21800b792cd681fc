"""The batch that a model is given: which dimension holds its samples, and how to change one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from traincheck.collect.probes.base import Call
from traincheck.collect.probes.isolation import UnfitError
from traincheck.collect.probes.samples import pairs_of_rows
from traincheck.collect.probes.tree import holds_others, leaves, mapped
from traincheck.collect.tensors.reading import modules_in

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
