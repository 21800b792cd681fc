"""Exceptions that signal handlers of the program raise while code of traincheck runs.

A deadline, a preemption notice or an interrupt may arrive between any two instructions. Such an
exception belongs to the program, whatever its class. Each ``except`` clause that runs in a training
process first passes it on. This module imports no other module of traincheck.
"""

from __future__ import annotations

import functools
import signal
from types import CodeType, FrameType, TracebackType
from typing import Any

_getsignal, _valid_signals = signal.getsignal, signal.valid_signals


def give_back(error: BaseException) -> None:
    """Raise an exception of the program again. Call this first in an ``except`` clause.

    Raises:
        BaseException: ``error``, if a signal handler of the program raised it.
    """
    if is_of_handler(error):
        raise error


def is_of_handler(error: BaseException) -> bool:
    """Whether a signal handler raised an exception.

    Python calls a handler with the frame that it interrupts. Only functions that trace or profile
    also get a frame, and those belong to the program too. A handler may have replaced itself since,
    or have dropped its arguments. Either sign is enough.
    """
    entry = error.__traceback__
    if entry is None or entry.tb_next is None:  # raised by C, below the clause itself
        return False
    if _was_given_its_caller(entry):
        return True
    codes = {found.tb_frame.f_code for found in _entries(entry)}
    return any(_code_of(_getsignal(number)) in codes for number in _valid_signals())


def _entries(entry: TracebackType | None) -> list[TracebackType]:
    found = []
    while entry is not None:
        found.append(entry)
        entry = entry.tb_next
    return found


def _was_given_its_caller(entry: TracebackType) -> bool:
    while entry.tb_next is not None:
        below = entry.tb_next.tb_frame
        if any(_is_or_holds(value, entry.tb_frame) for value in _arguments(below)):
            return True
        entry = entry.tb_next
    return False


def _arguments(frame: FrameType) -> list[Any]:
    code = frame.f_code
    count = code.co_argcount + bool(code.co_flags & 0x04)  # and ``*args``
    names = code.co_varnames[: count + code.co_kwonlyargcount]
    known = frame.f_locals
    return [known[name] for name in names if name in known]


def _is_or_holds(value: Any, frame: FrameType) -> bool:
    found = value if type(value) is tuple else (value,)
    return any(
        isinstance(item, FrameType) and (item is frame or item.f_back is frame) for item in found
    )


def _code_of(handler: Any) -> CodeType | None:
    while isinstance(handler, functools.partial):
        handler = handler.func
    if not hasattr(handler, "__code__") and not hasattr(handler, "__func__"):
        handler = vars(type(handler)).get("__call__")
    return getattr(getattr(handler, "__func__", handler), "__code__", None)
