"""The way from code of the program into code of traincheck, and back; one emitter a thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from traincheck.collect.listeners import Listeners
from traincheck.collect.tensors.reading import unseen
from traincheck.collect.trace_writer.emitter import Emitter, Writer


class ThreadState(threading.local):
    """The emitter of the running thread; None until its first record."""

    em: Emitter | None = None
    lease: Lease | None = None


class Lease:
    """Returns an emitter when its thread ends and its locals are freed.

    This also works for threads of C++. Python does not know whether those are alive.
    """

    __slots__ = ("_em", "_free")

    def __init__(self, em: Emitter, free: deque[Emitter]) -> None:
        self._em, self._free = em, free

    def __del__(self) -> None:
        self._free.append(self._em)


Fault: TypeAlias = Callable[[Any, BaseException], None]  # gets what failed, and the error


class Threads(Writer, Protocol):
    """A recording, as code of ours enters it from any thread. local: of the running one."""

    local: ThreadState

    def emitter(self) -> Emitter:
        """The emitter of the running thread, made at its first record."""


def guarded(em: Emitter, action: Callable[..., Any], *args: Any) -> Any:
    """Run code of traincheck: its calls are not recorded, and its failure is only counted.

    Returns:
        What ``action`` returns; None after a failure.
    """
    busy, em.busy = em.busy, True
    try:
        with unseen():
            return action(*args)
    except Exception as error:  # training must go on whatever we got wrong
        em.session.fault(action, error)
        return None
    finally:
        em.busy = busy


def attempt(fault: Fault, action: Callable[..., Any], *args: Any) -> Any:
    """`guarded`, but for the mark: for code that calls nothing that is recorded."""
    try:
        with unseen():
            return action(*args)
    except Exception as error:  # training must go on whatever we got wrong
        fault(action, error)
        return None


def quietly(session: Threads, action: Callable[..., Any], *args: Any) -> Any:
    """`guarded` in this thread; one without an emitter, such as one of autograd, gets none."""
    em = session.local.em
    return guarded(em, action, *args) if em is not None else attempt(session.fault, action, *args)


def tell(session: Threads, moment: Listeners[Callable[..., Any]], *args: Any) -> None:
    """Call all listeners of a moment, within code of ours. Each may fail, and others go on."""
    for action in moment.all:
        try:
            action(*args)
        except Exception as error:  # training must go on, and the step must be written
            session.fault(action, error)


def observe(session: Threads, action: Callable[..., Any], *args: Any) -> Any:
    """`guarded` in this thread, if the program is recorded and no code of traincheck runs in it."""
    em = session.local.em or session.emitter()
    if em.busy or not session.recording.on:
        return None
    return guarded(em, action, *args)
