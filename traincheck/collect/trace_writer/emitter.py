"""Number records and hand them to the kernel as they are made.

The hot path of every event: it knows no instrument.

One `Emitter` a thread. Records are made of pre-serialized pieces: filling a template takes a third
of the time that building and serializing a dict takes (0.36 against 0.99 microseconds,
benchmarks/overhead.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from os import getpid
from pathlib import Path
from time import monotonic_ns
from typing import Any, Protocol, TypeVar

import orjson
import torch

from traincheck.collect.launch.settings import Settings
from traincheck.collect.templates import (
    AUTOCAST,
    CALL,
    EVENT,
    INNER_CALL,
    NO_GRAD,
    NUMBER,
    STAGE_ALONE,
    STATE,
    STEP_AND_STAGE,
)
from traincheck.collect.tensors.reading import has_mode
from traincheck.collect.tensors.summarize import dumps
from traincheck.collect.trace_writer.event_file import EventFile
from traincheck.collect.trace_writer.pending_numbers import Finish, PendingNumbers
from traincheck.handlers import give_back
from traincheck.schema.layout import event_file_name

MOST_HELD = 2048  # records that wait for numbers of theirs from a device
BATCH = 128  # records a write; after SIGKILL at most this many are missing from a thread
_SPANS_PER_THREAD = 1 << 40

_F = TypeVar("_F", bound=Callable[..., Any])
_dumps = orjson.dumps

# The interpreter leaves frames of files whose name holds both words out when it counts
# ``stacklevel``, so a warning raised below a wrapper still names the line that it names without us.
HIDDEN_FILE = "<traincheck importlib._bootstrap>"


def hidden(function: _F) -> _F:
    """Make a wrapper's frame invisible to ``warnings`` and to the traceback that ends a script."""
    code: Any = function
    code.__code__ = code.__code__.replace(co_filename=HIDDEN_FILE)
    return function


class RecordingFlags:
    """What every wrapper looks at first. One object a session, so that turning it is one store.

    on: records are wanted. idle: nothing is recorded and no boundary is awaited. inner, looks: also
    calls within modules, and changes of variables, that are wanted in some steps only. autocast,
    modes: it has been on, or function modes have, so that it is worth asking whether it is now.
    """

    __slots__ = ("autocast", "idle", "inner_calls", "modes", "on", "scans")

    def __init__(self) -> None:
        self.on = True
        self.inner_calls = self.scans = True
        self.idle = False
        self.autocast = any_autocast()
        self.modes = has_mode()


class Clock:
    """Where in the run we are: what the common fields of every record are taken from."""

    __slots__ = ("fields", "stage", "step")

    def __init__(self) -> None:
        self.set(0, "init")

    def set(self, step: int | None, stage: str) -> None:
        """Move on. ``fields`` is the same, serialized."""
        self.step = step
        self.stage = stage
        if step is None:
            self.fields = STAGE_ALONE % stage.encode()
        else:
            self.fields = STEP_AND_STAGE % (step, stage.encode())


class Writer(Protocol):
    """The recording that an emitter is of.

    recording, clock: of the process. rank: of the process in its job; 0 for the only one.
    """

    settings: Settings
    recording: RecordingFlags
    clock: Clock
    rank: int

    def fault(self, source: Any, error: BaseException) -> None:
        """Count a failure of our own in ``source``; never raise it."""

    def storage_failed(self, error: OSError, records: int) -> None:
        """A write failed, and so many records are lost."""


class Emitter:
    """The records of one thread, and the top of its stack of open spans.

    When its thread has ended, the next that begins goes on with it: `Session.emitter`.

    busy: our own code is running, and what it calls is not the user's doing.
    modules: depth of module calls.
    module: the innermost module that is being called.
    inner: what stands for the function that is being called, if its calls are recorded.
    buffer: complete records that wait to be written.
    """

    __slots__ = (
        "_handed", "_late", "_lock", "buffer", "busy", "clock", "file", "flushed_ns", "inner",
        "module", "modules", "next_span", "seq", "session", "thread", "top",
    )  # fmt: skip

    def __init__(self, session: Writer, thread: int) -> None:
        self.session = session
        self.clock = session.clock
        self.thread = thread
        self.top: int | None = None
        self.next_span = thread * _SPANS_PER_THREAD + 1
        self.seq = 0
        self.busy = False
        self.inner: object = None
        self.modules = 0
        self.module: torch.nn.Module | None = None
        self.flushed_ns = 0  # when the kernel was last handed records
        # Reentrant: a signal handler or a finalizer of the user's may run in here and record calls
        self._lock = threading.RLock()
        self.buffer: list[bytes] = []
        self.file = EventFile(self._path)
        self._handed = 0  # records that were handed to the file
        self._late = PendingNumbers()

    def call(self, span: int, parent: int | None, start_ns: int, body: bytes) -> None:
        """Record a call whose own fields are already JSON."""
        seq = self.seq
        now, place = monotonic_ns(), self.clock.fields
        if parent is None:
            line = CALL % (seq, now, place, span, start_ns, body)
        else:
            line = INNER_CALL % (seq, now, place, span, parent, start_ns, body)
        if self.seq != seq:
            self.append(line, seq)
        else:  # `append`, inlined
            self.seq = seq + 1
            self.buffer.append(line)
            if len(self.buffer) >= BATCH:
                self.flush_if_full()

    def state(self, time_ns: int, body: bytes) -> None:
        """Record a state change whose own fields are already JSON."""
        seq = self.seq
        self.append(STATE % (seq, time_ns, self.clock.fields, body), seq)

    def event(self, kind: str, fields: dict[str, Any]) -> None:
        """Record any other event."""
        self.write_json(kind, dumps(fields)[1:-1])

    def write_json(self, kind: str, body: bytes) -> None:
        """Record an event whose own fields are already JSON."""
        seq = self.seq
        head = (kind.encode(), seq, monotonic_ns(), self.clock.fields)
        self.append(EVENT % (*head, b"," if body else b"", body), seq)

    def now(self) -> bytes:
        """Time and common fields of a record."""
        return b"%d,%b" % (monotonic_ns(), self.clock.fields)

    def append(self, line: bytes, seq: int) -> None:
        """Buffer a complete record that was given the number ``seq``, as it was read from here.

        A signal handler of the program may record meanwhile: the number is taken as the record is
        appended, with no call between.
        """
        while self.seq != seq:
            line, seq = _numbered(line, seq, now := self.seq), now
        self.seq = seq + 1
        self.buffer.append(line)
        if len(self.buffer) >= BATCH:
            self.flush_if_full()

    def append_many(self, lines: list[bytes], seq: int) -> None:
        """As `append` with many, the first of which was given the number ``seq``."""
        count = len(lines)
        while self.seq != seq:
            now = self.seq
            lines = [_numbered(line, seq + i, now + i) for i, line in enumerate(lines)]
            seq = now
        self.seq = seq + count
        self.buffer += lines
        if len(self.buffer) >= BATCH:
            self.flush_if_full()

    def flush_if_full(self) -> None:
        """Write, unless records wait for numbers from a device."""
        if not self._late.waiting or len(self.buffer) >= MOST_HELD:
            self.flush()

    def defer(self, finish: Finish, numbers: torch.Tensor) -> bytes:
        """A place in a record for what ``finish`` makes of numbers that are on a device.

        The record is held back until the step ends, when all are read at once.
        """
        return self._late.add(finish, numbers)

    def flush(self, *, is_own: bool = True) -> None:
        """Write what is buffered. A write that fails ends the recording, never the training.

        Args:
            is_own: called by the thread whose records these are. Another thread leaves alone what
                waits for numbers from a device.
        """
        if not self.buffer and not self.file.left:
            return
        with self._lock:
            if is_own and self._late.waiting:
                try:
                    self._late.read()
                except Exception as error:
                    self.session.fault(self.flush, error)
            if self._late.waiting:
                return
            self._hand_over()
            self.flushed_ns = monotonic_ns()
            try:
                self.file.write()
            except OSError as error:
                give_back(error)
                self.session.storage_failed(error, self.file.drop())

    def _hand_over(self) -> None:
        """Move what is buffered to the file, which writes it.

        The thread may append meanwhile, and a signal handler may do all of this itself: what is
        read in one line, and what is done in the last block, has no call in it, so that neither
        comes between.
        """
        file, late = self.file, self._late
        while True:
            handed, lines = self._handed, self.buffer[:]
            if not lines:
                late.clear()
                return
            count, start = len(lines), b"\n" if file.is_torn and not file.left else b""
            data = start + b"\n".join(late.filled(lines)) + b"\n"
            if self._handed == handed:
                self._handed = handed + count
                del self.buffer[:count]
                file.left += data

    def _path(self) -> Path:
        name = event_file_name(self.session.rank, getpid(), self.thread)
        return Path(self.session.settings.directory) / name

    def drop_inherited(self) -> None:
        """In a forked child: the buffer and the file belong to the parent."""
        self._lock = threading.RLock()  # another thread may have held it
        self.buffer.clear()
        self._late.leave()
        self.file.leave()


def _numbered(line: bytes, old: int, new: int) -> bytes:
    """A record under another number, which stands before all that a program may have named."""
    return line.replace(NUMBER % old, NUMBER % new, 1)


def context(is_grad_enabled: Callable[[], bool] = torch.is_grad_enabled) -> bytes:
    """Grad mode and autocast as the end of a record, when they are not the default."""
    text = b"" if is_grad_enabled() else NO_GRAD
    return text + AUTOCAST + _dumps(_autocast_dtype()) if any_autocast() else text


def _autocast_dtype() -> str | None:
    for device in ("cuda", "cpu"):
        if torch.is_autocast_enabled(device):
            return str(torch.get_autocast_dtype(device)).removeprefix("torch.")
    return None


# One C call instead of one for each device type: 0.04 against 0.36 microseconds a record.
any_autocast: Callable[[], bool] = getattr(
    torch._C, "_is_any_autocast_enabled", torch.is_autocast_enabled
)
