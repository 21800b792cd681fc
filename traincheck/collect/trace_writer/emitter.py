"""Number records and hand them to the kernel as they are made.

The hot path of every event, independent of instruments. One `Emitter` per thread. Records are made
of pre-serialized pieces: filling a template takes a third of the time of building and serializing a
dict (0.36 against 0.99 microseconds, benchmarks/overhead.py).
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

MOST_HELD = 2048  # records that wait for their numbers from a device
BATCH = 128  # records per write; after SIGKILL at most this many of a thread are missing
_SPANS_PER_THREAD = 1 << 40

_F = TypeVar("_F", bound=Callable[..., Any])
_dumps = orjson.dumps

# When the interpreter counts ``stacklevel``, it skips frames of files whose names contain both
# words. So a warning raised below a wrapper still names the same line as without traincheck.
HIDDEN_FILE = "<traincheck importlib._bootstrap>"


def hidden(function: _F) -> _F:
    """Make a wrapper's frame invisible to ``warnings`` and to the traceback that ends a script."""
    code: Any = function
    code.__code__ = code.__code__.replace(co_filename=HIDDEN_FILE)
    return function


class RecordingFlags:
    """Flags that every wrapper tests first. One object per session, so that a change is one store.

    Attributes:
        on: records are requested.
        idle: nothing is recorded and no step boundary is awaited.
        inner, looks: calls within modules, and changes of variables, are recorded now.
        autocast, modes: autocast, or function modes, were on before, so they must be tested.
    """

    __slots__ = ("autocast", "idle", "inner_calls", "modes", "on", "scans")

    def __init__(self) -> None:
        self.on = True
        self.inner_calls = self.scans = True
        self.idle = False
        self.autocast = any_autocast()
        self.modes = has_mode()


class Clock:
    """The position in the run: the source of the common fields of every record."""

    __slots__ = ("fields", "stage", "step")

    def __init__(self) -> None:
        self.set(0, "init")

    def set(self, step: int | None, stage: str) -> None:
        """Set the position. ``fields`` is the same, serialized."""
        self.step = step
        self.stage = stage
        if step is None:
            self.fields = STAGE_ALONE % stage.encode()
        else:
            self.fields = STEP_AND_STAGE % (step, stage.encode())


class Writer(Protocol):
    """The recording that an emitter belongs to.

    recording, clock: of the process. rank: of the process in its job; 0 for the only one.
    """

    settings: Settings
    recording: RecordingFlags
    clock: Clock
    rank: int

    def fault(self, source: Any, error: BaseException) -> None:
        """Count a failure of traincheck in ``source``; never raise it."""

    def storage_failed(self, error: OSError, records: int) -> None:
        """A write failed, and this number of records is lost."""


class Emitter:
    """The records of one thread, and the top of its stack of open spans.

    When its thread has ended, the next new thread continues it: see `Session.emitter`.

    Attributes:
        busy: code of traincheck is running; its calls are not the user's.
        modules: depth of module calls.
        module: the innermost module that is being called.
        inner: represents the function that is being called, if its calls are recorded.
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
        self.flushed_ns = 0  # time of the last write
        # Reentrant: a signal handler or finalizer of the user may run inside and record calls
        self._lock = threading.RLock()
        self.buffer: list[bytes] = []
        self.file = EventFile(self._path)
        self._handed = 0  # records that the file got
        self._late = PendingNumbers()

    def call(self, span: int, parent: int | None, start_ns: int, body: bytes) -> None:
        """Record a call whose specific fields are already JSON."""
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
        """Record a state change whose specific fields are already JSON."""
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

        A signal handler of the program may record meanwhile. The number is taken when the record is
        appended, with no call between.
        """
        while self.seq != seq:
            line, seq = _numbered(line, seq, now := self.seq), now
        self.seq = seq + 1
        self.buffer.append(line)
        if len(self.buffer) >= BATCH:
            self.flush_if_full()

    def append_many(self, lines: list[bytes], seq: int) -> None:
        """Like `append` for several records, the first of which was given the number ``seq``."""
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

        The record waits until the step ends, when all numbers are read at once.
        """
        return self._late.add(finish, numbers)

    def flush(self, *, is_own: bool = True) -> None:
        """Write what is buffered. A write that fails ends the recording, never the training.

        Args:
            is_own: called by the thread of these records. Another thread does not touch records
            that wait for numbers from a device.
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
        """Move the buffered records to the file, which writes them.

        The thread may append meanwhile, and a signal handler may run this method itself. The line
        that reads and the last block contain no call, so neither can interrupt them.
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
        self._lock = threading.RLock()  # another thread may have owned it
        self.buffer.clear()
        self._late.leave()
        self.file.leave()


def _numbered(line: bytes, old: int, new: int) -> bytes:
    """A record with another number. The number precedes all text of a program."""
    return line.replace(NUMBER % old, NUMBER % new, 1)


def context(is_grad_enabled: Callable[[], bool] = torch.is_grad_enabled) -> bytes:
    """Grad mode and autocast as the end of a record, if they are not the default."""
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
