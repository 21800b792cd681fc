"""Number records and put them into their file as they are made.

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
    STATE,
)
from traincheck.collect.tensors.devices import KIND
from traincheck.collect.tensors.summarize import dumps
from traincheck.collect.trace_writer.event_file import LARGE, EventFile
from traincheck.collect.trace_writer.pending_numbers import Finish, PendingNumbers
from traincheck.collect.trace_writer.recording_state import Clock, RecordingFlags, any_autocast
from traincheck.handlers import give_back
from traincheck.schema.layout import event_file_name

MOST_HELD = 2048  # records that wait for their numbers from a device
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
        held: records, or several at once, that wait: for numbers from a device, or to be written.
        put: takes a record, with its line feed: into the file, or `held`. ValueError if the memory
        of the file is full.
    """

    __slots__ = (
        "_late", "_lock", "busy", "clock", "file", "flushed_ns", "held", "inner", "module",
        "modules", "next_span", "put", "seq", "session", "thread", "top",
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
        self.held: list[bytes] = []
        self.put: Callable[[bytes], object] = self.held.append
        self.file = EventFile(self._path)
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
            return
        self.seq = seq + 1  # `append`, inlined
        try:
            self.put(line)
        except ValueError as error:
            if error.__traceback__.tb_next is None:  # type: ignore[union-attr]  # of no handler
                self.seq = seq  # no call since: the number is free again
            give_back(error)
            self.overflow(line, seq)
        if self.held:
            self._flush_if_full()

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

    def append(self, line: bytes, seq: int, count: int = 1) -> None:
        """Add complete records that were given numbers from ``seq`` on, as it was read from here.

        A signal handler of the program may record meanwhile. The number is taken when the record is
        put, with no call between.
        """
        while self.seq != seq:
            line, seq = _numbered(line, seq, now := self.seq), now
        self.seq = seq + count
        try:
            self.put(line)
        except ValueError as error:
            if error.__traceback__.tb_next is None:  # type: ignore[union-attr]  # of no handler
                self.seq = seq  # no call since: the number is free again
            give_back(error)
            self.overflow(line, seq, count)
        if self.held:
            self._flush_if_full()

    def overflow(self, line: bytes, seq: int, count: int = 1) -> None:
        """`append` what does not fit into the memory of the file."""
        self.put = self.held.append
        self.append(line, seq, count)

    def _flush_if_full(self) -> None:
        """Write, unless records wait for numbers from a device."""
        if not self._late.waiting or len(self.held) >= MOST_HELD:
            self.flush()

    def defer(self, finish: Finish, numbers: torch.Tensor) -> bytes:
        """A place in a record for what ``finish`` makes of numbers that are on a device.

        The record waits until the step ends, when all numbers are read at once, and so do those
        that follow it.
        """
        self.put = self.held.append
        return self._late.add(finish, numbers)

    def flush(self, *, is_own: bool = True, is_last: bool = False) -> None:
        """Write what is held. A write that fails ends the recording, never the training.

        Args:
            is_own: called by the thread of these records. Another thread does not touch records
            that wait for numbers from a device.
            is_last: the process may end or be replaced now.
        """
        if self.session.recording.muted:
            self.held.clear()
            return
        if not self.held and self.file.is_mapped and not is_last:
            return
        with self._lock:
            if is_own and self._late.waiting:
                try:
                    self._late.read()
                except Exception as error:
                    self.session.fault(self.flush, error)
            if self._late.waiting:
                return
            self.flushed_ns = monotonic_ns()
            file = self.file
            file.turn = turn = file.turn + 1
            try:
                if is_last or not file.is_mapped:
                    self.put = self.held.append
                    file.settle(turn)
                while file.turn == turn and not self._is_flushed(turn, is_last=is_last):
                    pass
            except OSError as error:
                give_back(error)
                lost = file.drop() + sum(data.count(b"\n") for data in self.held)
                self.held.clear()
                self.put = self.held.append
                self.session.storage_failed(error, lost)

    def _is_flushed(self, turn: int, *, is_last: bool) -> bool:
        """Move what is held into the file, in one of several passes. Returns whether all is there.

        The thread may append meanwhile, and a signal handler may flush itself. What follows a test
        of the turn contains no call before its last word, so neither can interrupt it.
        """
        file, held = self.file, self.held
        lines = held[:]
        data = b"".join(self._late.filled(lines))
        if file.is_torn and not file.left:
            data = b"\n" + data
        count, size = len(lines), len(data)
        if is_last or file.left or (size and (size > LARGE or file.is_written)):
            file.settle(turn)
            if file.turn == turn:
                del held[:count]
                file.left += data
            file.write(turn)
            return is_last and not held
        if not file.is_open:
            file.begin(turn)
        elif not size:
            self._late.clear()
            if file.turn == turn and not held:
                self.put = file.append
                return True
        elif not file.fits(size):
            file.settle(turn)
        elif file.turn == turn:
            del held[:count]
            file.is_torn = False
            file.append(data)
        return False

    def empty_file(self, size: int) -> bool:
        """Remove all records from the file, if they have so many bytes. Returns whether it did."""
        with self._lock:
            self.flush(is_last=True)
            return not self.held and self.file.empty(size)

    def _path(self) -> Path:
        name = event_file_name(self.session.rank, getpid(), self.thread)
        return Path(self.session.settings.directory) / name

    def drop_inherited(self) -> None:
        """In a forked child: the file, its memory and what is held belong to the parent."""
        self._lock = threading.RLock()  # another thread may have owned it
        self.held.clear()
        self.put = self.held.append
        self._late.leave()
        self.file.leave()


def _numbered(data: bytes, old: int, new: int) -> bytes:
    """Records with other numbers. The number precedes all text of a program."""
    lines = enumerate(data.splitlines(keepends=True))
    return b"".join(line.replace(NUMBER % (old + i), NUMBER % (new + i), 1) for i, line in lines)


def context(is_grad_enabled: Callable[[], bool] = torch.is_grad_enabled) -> bytes:
    """Grad mode and autocast as the end of a record, if they are not the default."""
    text = b"" if is_grad_enabled() else NO_GRAD
    return text + AUTOCAST + _dumps(_autocast_dtype()) if any_autocast() else text


def _autocast_dtype() -> str | None:
    for device in (KIND, "cpu"):
        if torch.is_autocast_enabled(device):
            return str(torch.get_autocast_dtype(device)).removeprefix("torch.")
    return None
