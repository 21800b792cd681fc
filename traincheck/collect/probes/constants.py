"""Values that leave the graph on purpose: recorded in one copy of the process, put back in others.

A gradient takes as constants what is detached, read as a number, chosen, or computed without
gradients from what requires them. Targets of temporal differences, advantages and straight-through
estimates are such. A finite difference has to do the same. Within `autograd.Function.forward`
nothing is a constant: its backward answers for it.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from os import fstat, lseek, read
from os import write as _write
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from traincheck.collect.probes.batch import leaves, mapped
from traincheck.collect.probes.functions import DivergedError, Functions
from traincheck.collect.trace_writer.emitter import hidden

MOST_BYTES = 1 << 28
_READ = frozenset(
    {
        torch.Tensor.item,
        torch.Tensor.tolist,
        torch.Tensor.__bool__,
        torch.Tensor.__float__,
        torch.Tensor.__int__,
        torch.Tensor.__index__,
    }
)
_CHUNK = 1 << 24


class Constants(TorchFunctionMode):
    """Records constants, or puts recorded ones back in the same order.

    Args:
        functions: the running calls of `autograd.Function`.
        recorded: the constants of another copy; None to record.
    """

    def __init__(self, functions: Functions, recorded: list[Any] | None = None) -> None:
        super().__init__()
        self.found: list[Any] = []
        self.is_on = True  # no backward pass has begun
        self._functions = functions
        self._recorded: Iterator[Any] | None = None if recorded is None else iter(recorded)
        self.left = 0 if recorded is None else len(recorded)  # that were not put back yet
        self._bytes = 0

    @hidden
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunction():
            depends = self.is_on and any(t.requires_grad for t in leaves((args, kwargs)))
        result = func(*args, **kwargs)
        if not depends or self._functions.depth:
            return result
        if func in _READ:
            if self._recorded is not None:
                return self._next()
            self.found.append(result)
            return result
        if not any(True for tensor in leaves(result) if not tensor.requires_grad):
            return result
        return mapped(result, lambda tensor: self._constant(tensor, args, kwargs))

    def _constant(self, tensor: torch.Tensor, args: Any, kwargs: Any) -> torch.Tensor:
        if tensor.requires_grad:
            return tensor
        with torch._C.DisableTorchFunction(), torch.no_grad():
            if self._recorded is None:
                self._bytes += tensor.numel() * tensor.element_size()
                if self._bytes > MOST_BYTES:
                    raise DivergedError("there are too many constants to keep")
                self.found.append(tensor.detach().clone())
                return tensor
            value = self._next()
            if not isinstance(value, torch.Tensor) or value.shape != tensor.shape:
                raise DivergedError("a moved copy does other operations")
            if any(tensor is given for given in leaves((args, kwargs))):  # in place
                tensor.copy_(value)
                return tensor
            return value

    def _next(self) -> Any:
        assert self._recorded is not None
        self.left -= 1
        if self.left < 0:
            raise DivergedError("a moved copy does more operations")
        return next(self._recorded)


def put(fd: int, value: Any) -> None:
    """Write a value into a file in memory that copies of the process share."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    left = memoryview(buffer.getbuffer())
    while left:
        left = left[_write(fd, left[:_CHUNK]) :]


def get(fd: int) -> Any:
    """The value that `put` has written."""
    lseek(fd, 0, 0)
    size, parts = fstat(fd).st_size, []
    while size:
        part = read(fd, min(size, _CHUNK))
        parts.append(part)
        size -= len(part)
    return torch.load(io.BytesIO(b"".join(parts)), weights_only=False)
