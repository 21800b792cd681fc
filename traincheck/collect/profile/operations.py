"""The calls of torch functions in a profiled step: their lines, and whether results are finite.

A mode sees each outermost call of a function of torch. It is put at the bottom of the stack of
modes, so that a mode of the program, which ends by removing the top, never removes it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _device
from torch.utils._device import DeviceContext

from traincheck.collect.trace_writer.emitter import hidden

_GETTERS = frozenset({"__get__", "__set__", "backward", "size", "dim", "requires_grad_"})
_push, _pop = torch._C._push_on_torch_function_stack, torch._C._pop_torch_function_stack
_length = torch._C._len_torch_function_stack
# Changing the default device takes out the mode at the bottom, but in older torch that at the top.
_IS_AT_BOTTOM = hasattr(_device, "_pop_mode")


class Step(Protocol):
    """The step whose operations are seen: see `StepProfile`."""

    is_open: bool

    def is_mine(self) -> bool:
        """Whether the step is that of this thread."""

    def begin_operation(self, func: Any, frame: FrameType | None) -> str | None:
        """A function is called. Returns its line."""

    def end_operation(
        self, func: Any, line: str | None, args: Any, kwargs: Any, result: Any
    ) -> None:
        """It returns."""


class Operations(TorchFunctionMode):
    """Sees the functions that the program calls, and changes none of them."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        self._step = step

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        step = self._step
        if not step.is_open or func.__name__ in _GETTERS or not step.is_mine():
            return func(*args, **kwargs) if kwargs else func(*args)
        line = step.begin_operation(func, sys._getframe(1))
        result = func(*args, **kwargs) if kwargs else func(*args)
        step.end_operation(func, line, args, kwargs, result)
        return result

    hidden(__torch_function__)


def insert(mode: TorchFunctionMode) -> None:
    """Put a mode at the bottom of the stack, above a default device that must be there."""
    above = _taken()
    if _IS_AT_BOTTOM and above and type(above[-1]) is DeviceContext:
        _push(above.pop())
    _push(mode)
    for other in reversed(above):
        _push(other)


def remove(mode: TorchFunctionMode) -> bool:
    """Take a mode out of the stack. Returns whether it was there."""
    above = _taken()
    for other in reversed(above):
        if other is not mode:
            _push(other)
    return any(other is mode for other in above)


def _taken() -> list[Any]:
    """All modes, the top first; the stack is empty then."""
    return [_pop() for _ in range(_length())]
