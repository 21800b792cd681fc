"""Hand records to the kernel as they are made, and wrap calls into spans. This is the hot path: it knows no instrument.

One `Emitter` a thread. A record costs the training thread about two microseconds (benchmarks/overhead.py, "recorded call").
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
import torch
from torch.compiler import is_compiling

from traincheck.collect.summarize import summarize
from traincheck.schema.layout import event_file_name

if TYPE_CHECKING:
    from traincheck.collect.session import Session

BATCH = 64  # records a write; after SIGKILL at most this many are missing from a thread
_SPANS_PER_THREAD = 1 << 40

_F = TypeVar("_F", bound=Callable[..., Any])
_TORCH_DIR = str(Path(torch.__file__).parent)
_OWN_DIR = str(Path(__file__).parent)
_dumps = orjson.dumps

# The interpreter leaves frames of files whose name holds both words out when it counts ``stacklevel``, so a warning
# raised below a wrapper still names the line that it names without us.
HIDDEN_FILE = "<traincheck importlib._bootstrap>"


def hidden(function: _F) -> _F:
    """Make a wrapper's frame invisible to ``warnings`` and to the traceback that ends a script (session.py)."""
    function.__code__ = function.__code__.replace(co_filename=HIDDEN_FILE)  # type: ignore[attr-defined]
    return function


class Switch:
    """What every wrapper looks at first. One object a session, so that turning it is one store.

    idle: nothing is recorded and no boundary is awaited. on: records are wanted.
    """

    __slots__ = ("idle", "on")

    def __init__(self) -> None:
        self.on = True
        self.idle = False


class Clock:
    """Where in the run we are: what the common fields of every record are taken from."""

    __slots__ = ("stage", "step")

    def __init__(self) -> None:
        self.step: int | None = 0
        self.stage = "init"


class Emitter:
    """The records of one thread: numbered, buffered, written. Also its stack of open spans, of which it keeps the top."""

    __slots__ = ("_buffer", "_fd", "busy", "clock", "inner", "modules", "next_span", "seq", "session", "thread", "top")

    def __init__(self, session: Session, thread: int) -> None:
        self.session = session
        self.clock = session.clock
        self.thread = thread
        self.top: int | None = None
        self.next_span = thread * _SPANS_PER_THREAD + 1
        self.seq = 0
        self.busy = False  # our own code is running: what it calls is not the user's doing
        self.modules = 0  # depth of module calls
        self.inner = False  # inside a recorded function
        self._buffer: list[bytes] = []
        self._fd = -1

    def record(self, fields: dict[str, Any]) -> None:
        """Number and buffer one record that already holds k, t and the fields of its kind."""
        fields["n"] = self.seq
        self.seq += 1
        self._buffer.append(_dumps(fields, default=repr))
        if len(self._buffer) >= BATCH:
            self.flush()

    def line(self, text: bytes) -> None:
        """Buffer a record already in JSON, made with ``take_seq``."""
        self._buffer.append(text)
        if len(self._buffer) >= BATCH:
            self.flush()

    def now(self) -> int:
        """Monotonic nanoseconds."""
        return monotonic_ns()

    def take_seq(self) -> int:
        seq = self.seq
        self.seq = seq + 1
        return seq

    def event(self, kind: str, fields: dict[str, Any]) -> None:
        """Record an event that is not a call."""
        clock = self.clock
        self.record({"k": kind, "n": 0, "t": monotonic_ns(), "s": clock.step, "g": clock.stage, **fields})

    def flush(self) -> None:
        """Write what is buffered. A write that fails ends the recording, never the training."""
        if not self._buffer:
            return
        data = b"\n".join(self._buffer) + b"\n"
        count = len(self._buffer)
        self._buffer.clear()
        try:
            if self._fd < 0:
                self._open()
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            self.session.storage_failed(error, count)

    def _open(self) -> None:
        name = event_file_name(self.session.rank, os.getpid(), self.thread)
        path = Path(self.session.settings.directory) / name
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def renamed(self, old_rank: int) -> None:
        """The rank became known: give the file its right name. A reader that follows it goes by stream."""
        if self._fd < 0:
            return
        folder = Path(self.session.settings.directory)
        pid = os.getpid()
        os.rename(
            folder / event_file_name(old_rank, pid, self.thread),
            folder / event_file_name(self.session.rank, pid, self.thread),
        )

    def drop_inherited(self) -> None:
        """In a forked child: the buffer and the file belong to the parent."""
        self._buffer.clear()
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


class Local(threading.local):
    """The emitter of the running thread; None until its first record."""

    em: Emitter | None = None


def where() -> str | None:
    """``file:line`` of the nearest frame outside torch and traincheck."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((_TORCH_DIR, _OWN_DIR, "<")):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return None


def span_wrapper(
    function: Callable[..., Any],
    session: Session,
    describe: Callable[[Emitter, tuple[Any, ...], Mapping[str, Any], Any], dict[str, Any]],
    *,
    before: Callable[[Emitter, tuple[Any, ...]], None] | None = None,
    after: Callable[[Emitter, int, tuple[Any, ...], Mapping[str, Any], Any], None] | None = None,
    sees_idle: bool = False,
) -> Callable[..., Any]:
    """Wrap ``function`` so that each call becomes a span.

    Args:
        describe: fields of the record besides the common ones, from arguments and result (None after an exception).
        before, after: run inside our own guard around the call; ``after`` runs before the record is written.
        sees_idle: run ``before`` and ``after`` also on steps that are not recorded (step counting needs a few calls).
    """
    switch, local, fault = session.switch, session.local, session.fault

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if is_compiling() or (switch.idle and not sees_idle):
            return function(*args, **kwargs)
        em = local.em or session.emitter()
        if em.busy:
            return function(*args, **kwargs)
        if before is not None:
            em.busy = True
            try:
                before(em, args)
            except Exception as error:  # training must go on whatever we got wrong
                fault(describe, error)
            em.busy = False
        span = em.next_span
        em.next_span = span + 1
        parent = em.top
        em.top = span
        start = monotonic_ns()
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            em.top = parent
            _close(em, describe, span, parent, start, args, kwargs, None, type(error).__name__)
            raise
        em.top = parent
        if after is not None:
            em.busy = True
            try:
                after(em, span, args, kwargs, result)
            except Exception as error:  # training must go on whatever we got wrong
                fault(describe, error)
            em.busy = False
        if switch.on:
            _close(em, describe, span, parent, start, args, kwargs, result, None)
        return result

    return hidden(wrapper)


def _close(
    em: Emitter,
    describe: Callable[..., dict[str, Any]],
    span: int,
    parent: int | None,
    start: int,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    result: Any,
    exception: str | None,
) -> None:
    if not em.session.switch.on:
        return
    em.busy = True
    try:
        clock = em.clock
        fields = {
            "k": "call", "n": 0, "t": 0, "s": clock.step, "g": clock.stage,
            "id": span, "parent": parent, "start": start,
        }  # fmt: skip
        fields.update(describe(em, args, kwargs, result))
        if exception is not None:
            fields["exception"] = exception
        fields["t"] = monotonic_ns()
        em.record(fields)
    except Exception as error:  # training must go on whatever we got wrong
        em.session.fault(describe, error)
    em.busy = False


def function_wrapper(
    function: Callable[..., Any],
    api: str,
    names: tuple[str, ...],
    defaults: dict[str, Any],
    session: Session,
    *,
    skip_inner: bool = False,
) -> Callable[..., Any]:
    """Wrap a stateless function. `span_wrapper` with everything inlined, as nine calls in ten pass here.

    Args:
        names: of the positional parameters. defaults: values of parameters that are not passed, when worth recording.
        skip_inner: leave out calls made by another recorded function.
    """
    switch, local = session.switch, session.local

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if is_compiling() or not switch.on:
            return function(*args, **kwargs)
        em = local.em or session.emitter()
        inner = em.inner
        if em.busy or (inner and skip_inner):
            return function(*args, **kwargs)
        span = em.next_span
        em.next_span = span + 1
        parent = em.top
        em.top = span
        em.inner = True
        start = monotonic_ns()
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            em.top, em.inner = parent, inner
            _close(em, describe, span, parent, start, args, kwargs, None, type(error).__name__)
            raise
        em.top, em.inner = parent, inner
        em.busy = True
        try:
            clock = em.clock
            fields = {
                "k": "call", "n": 0, "t": 0, "s": clock.step, "g": clock.stage,
                "id": span, "parent": parent, "start": start,
            }  # fmt: skip
            fields.update(describe(em, args, kwargs, result))
            fields["t"] = monotonic_ns()
            em.record(fields)
        except Exception as error:  # training must go on whatever we got wrong
            session.fault(describe, error)
        em.busy = False
        return result

    def describe(em: Emitter, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> dict[str, Any]:
        named = defaults.copy()
        for name, value in zip(names, args):
            if value is not None:
                named[name] = summarize(value)
        if len(args) > len(names):
            named.update({str(i): summarize(args[i]) for i in range(len(names), len(args))})
        for name, value in kwargs.items():
            if value is not None:
                named[name] = summarize(value)
        fields = {"api": api, "args": named, "result": summarize(result)}
        context(fields)
        return fields

    return hidden(wrapper)


def context(fields: dict[str, Any], is_grad_enabled: Callable[[], bool] = torch.is_grad_enabled) -> None:
    """Add grad mode and autocast when they are not the default."""
    if not is_grad_enabled():
        fields["grad_enabled"] = False
    if _any_autocast():
        fields["autocast"] = _autocast_dtype()


def _autocast_dtype() -> str | None:
    for device in ("cuda", "cpu"):
        if torch.is_autocast_enabled(device):
            return str(torch.get_autocast_dtype(device)).removeprefix("torch.")
    return None


# One C call instead of one for each device type: 0.04 against 0.36 microseconds a record.
_any_autocast: Callable[[], bool] = getattr(torch._C, "_is_any_autocast_enabled", torch.is_autocast_enabled)
