"""Values that leave the graph on purpose: recorded in one copy of the process, put back in others.

A gradient takes as constants what is detached, read as a number, chosen, or computed without
gradients from what requires them. Targets of temporal differences, advantages and straight-through
estimates are such. A finite difference has to do the same. Within `autograd.Function.forward`
nothing is a constant: its backward answers for it.
"""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable, Iterator
from os import fstat, lseek, read
from os import write as _write
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from traincheck.collect.probes.isolation import UnfitError
from traincheck.collect.probes.tree import leaves, mapped
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


class DivergedError(UnfitError):
    """A copy does not do what the recorded one did."""


class FunctionDepth:
    """Counts calls of `autograd.Function` that are running, and keeps what is known of each class.

    Attributes:
        depth: number of running calls.
        by_design: class -> why its gradient is not that of its forward.
        classes: those that were called.
        nodes: the names of their nodes.
    """

    def __init__(self, on_segment: Callable[[bool], None] | None = None) -> None:
        self.depth = 0
        self.by_design: dict[str, str] = {}
        self.classes: list[str] = []
        self.nodes: set[str] = set()
        self._on_segment = on_segment  # a segment is recomputed, with its random states or not

    def install(self) -> None:
        """Follow the calls; for a copy of the process, which ends anyway."""
        original: Any = inspect.getattr_static(torch.autograd.Function, "apply")
        follow = self._follow

        @hidden
        def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
            self.depth += 1
            try:
                result = _bound(original, cls)(*args, **kwargs)
            finally:
                self.depth -= 1
            follow(cls, args, result)
            return result

        torch.autograd.Function.apply = classmethod(apply)  # type: ignore[assignment]

    def _follow(self, cls: type, args: Any, result: Any) -> None:
        name = cls.__qualname__
        self.nodes.add(f"{cls.__name__}Backward")
        if name == "CheckpointFunction":
            if self._on_segment is not None:
                self._on_segment(bool(args[1]))
            return
        if name not in self.classes:
            self.classes.append(name)
        with torch._C.DisableTorchFunction():
            given = [t.detach() for t in leaves(args) if t.is_floating_point()]
            for out in leaves(result):
                if out.is_floating_point() and out.numel() > 1:
                    values = out.detach()
                    if any(g.shape == values.shape and torch.equal(g, values) for g in given):
                        self.by_design[name] = "returns its input"
                    elif len(torch.unique(values)) <= min(256, values.numel() // 2):
                        self.by_design[name] = "returns few different values"


class Constants(TorchFunctionMode):
    """Records constants, or puts recorded ones back in the same order.

    Args:
        functions: the running calls of `autograd.Function`.
        recorded: the constants of another copy; None to record.
    """

    def __init__(self, functions: FunctionDepth, recorded: list[Any] | None = None) -> None:
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
        if not self.is_on or self._functions.depth or not _depends(args, kwargs):
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        if func in _READ:
            return self._exchange(result)
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

    def _exchange(self, value: Any) -> Any:
        if self._recorded is None:
            self.found.append(value)
            return value
        return self._next()

    def _next(self) -> Any:
        assert self._recorded is not None
        self.left -= 1
        if self.left < 0:
            raise DivergedError("a moved copy does more operations")
        return next(self._recorded)


def _bound(attribute: Any, cls: type) -> Any:
    """An attribute of a class as it is read there: static, of the class, in C or in Python."""
    get = getattr(type(attribute), "__get__", None)
    return attribute if get is None else get(attribute, None, cls)


def _depends(args: Any, kwargs: Any) -> bool:
    with torch._C.DisableTorchFunction():
        return any(tensor.requires_grad for tensor in leaves((args, kwargs)))


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
