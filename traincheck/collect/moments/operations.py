"""Calls of functions of torch, in some steps: a mode that is there only while somebody looks.

Functions are not replaced for it, so that the other steps cost nothing. The mode lies below those
of the program: each ``with`` of the program still takes its own mode out.

A function of torch that is written in Python would call itself through the mode. Its tracebacks and
the lines of its warnings would then be others. So, while the mode is alone, these functions find
no reason to hand on a call, and the mode sees what they call instead.

`torch.compile` would trace the mode, and TorchScript the replaced functions. A program that
compiles is not looked at from then on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
import torch.functional
from torch.overrides import TorchFunctionMode

from traincheck.collect.moments.moment import Around
from traincheck.collect.moments.moments import Moments
from traincheck.collect.moments.replacements import Replacement
from traincheck.collect.tensors.reading import PLAIN_TYPES
from traincheck.collect.trace_writer.emitter import hidden
from traincheck.collect.trace_writer.guard import Threads, guarded
from traincheck.collect.trace_writer.recording_state import is_traced, state

# Name, arguments, and result of a call
Called: TypeAlias = Callable[[str, tuple[Any, ...], dict[str, Any], Any], None]

_depth: Callable[[], int] = torch._C._len_torch_function_stack
_push: Callable[[Any], None] = torch._C._push_on_torch_function_stack
_at: Callable[[int], Any] = torch._C._get_function_stack_at
_pop: Callable[[], Any] = torch._C._pop_torch_function_stack
# Modules whose functions ask whether to hand on a call, and the functions that they ask
_ASKING = (torch.nn.functional, torch.functional, torch._tensor, torch.autograd)
_ASKED = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
_DEVICE = "DeviceContext"  # torch keeps it at the bottom, and takes it out from there


class Operations(TorchFunctionMode):
    """Tells of calls in the thread that looks, between `begin` and `end`.

    Args:
        session: the recording.
        moments: of it.
        called: gets each call that the program makes, after it.
    """

    def __init__(self, session: Threads, moments: Moments, called: Called) -> None:
        super().__init__()
        self._session, self._called = session, called
        self._is_on = self._is_ended = False
        self._asked: list[Replacement] = []
        self._compiles = moments.at(torch, "compile")
        self._transforms = moments.transforms
        self._listener = Around(before=self._compiled, always=True)

    @property
    def is_on(self) -> bool:
        """Whether it tells of calls."""
        return self._is_on

    def begin(self) -> None:
        """Look from now on, unless the program compiles."""
        if self._is_ended or self._is_on or _has_device():
            return
        if _has_compiled():
            self._is_ended = True
            return
        self._compiles.add(self._listener)
        self._transforms.add(self._compiled)
        for holder in _ASKING:
            for name in _ASKED:
                original = vars(holder).get(name)
                if original is not None:
                    layer = Replacement(self, holder, name, original)
                    layer.put_in(_unless_alone(original))
                    self._asked.append(layer)
        _rearranged(self, is_wanted=True)
        self._is_on = True

    def end(self) -> None:
        """Look no more."""
        if self._is_on:
            self._is_on = False
            self._compiles.leave(self._listener)
            self._transforms.leave(self._compiled)
        while self._asked:
            layer = self._asked.pop()
            if not layer.is_covered():
                layer.take_out()
        _rearranged(self, is_wanted=False)

    def _compiled(self, *_: Any) -> None:
        """The program compiles: within this step and all later ones it must not find the mode."""
        self._is_ended = True
        self.end()

    @hidden
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        call = getattr(func, "replaced", func)  # a method that we replaced has seen this call
        result = call(*args, **kwargs) if kwargs else call(*args)
        if not self._is_on or is_traced() or state._is_compiling_flag:
            return result
        session = self._session
        em = session.local.em
        if em is not None and not em.busy and session.recording.on:
            guarded(em, self._called, getattr(func, "__name__", ""), args, kwargs or {}, result)
        return result


def _unless_alone(original: Callable[..., bool]) -> Callable[..., bool]:
    """``has_torch_function``, but that the mode alone is no reason to hand on a call."""

    def has_torch_function(*given: Any) -> bool:
        if _depth() == 1:
            tensors = given[0] if len(given) == 1 and isinstance(given[0], (tuple, list)) else given
            if all(type(one) in _PLAIN for one in tensors):
                return False
        return original(*given)

    return hidden(has_torch_function)


_PLAIN = frozenset({*PLAIN_TYPES, type(None), bool, int, float, str})


def _has_compiled() -> bool:
    """Whether something was compiled, or is about to be, in this process."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    backends = getattr(dynamo, "cached_backends", {})
    return any(one is not None for one in list(backends.values()))


def _has_device() -> bool:
    """Whether ``with torch.device(...)`` is entered: its end takes out whatever is on top.

    The default device stays at the bottom, and finds itself there.
    """
    default = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    found = [_at(place) for place in range(_depth())]
    return any(type(one).__name__ == _DEVICE and one is not default for one in found)


def _rearranged(mode: Operations, *, is_wanted: bool) -> None:
    """Put the mode below all others in this thread, or take it out, wherever it is.

    Within a call that it sees it is not in the stack: then it stays, and tells nothing.
    """
    above = [one for _ in range(_depth()) if (one := _pop()) is not mode]
    below = above and type(above[-1]).__name__ == _DEVICE
    if below:
        _push(above.pop())
    if is_wanted:
        _push(mode)
    for one in reversed(above):
        _push(one)
