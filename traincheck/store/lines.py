"""One event file, read in pieces: complete lines become events, bad ones are skipped and counted.

Replay and tail both use this module. It handles one file, not the order among files.

Events are numbered in their file. A repeated number makes a bad line. If numbers are missing,
absence is no evidence. Readers get the same mark as when a recording dropped events, and a step
that lost events ends as one that was not recorded.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from traincheck.handlers import give_back
from traincheck.schema.codec import decode, decode_lines, foreign_number
from traincheck.schema.events import Event, MarkEvent, StepEvent
from traincheck.schema.files import WINDOW, end_of_data, open_regular
from traincheck.schema.marks import Marks

CHUNK_BYTES = 1 << 16  # larger pieces leave the CPU cache: a quarter slower at 1 MiB
MAX_LINE_BYTES = 1 << 24  # longer lines are not events, and must not fill memory
_BLOCK = 4096  # of a hole
_GIVE_UP_BYTES = 1 << 28  # of one line: the file has no lines, and is not read to its end
MAX_SKIPS = 1000  # described; all are counted

_TOO_LONG = f"longer than {MAX_LINE_BYTES} bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """A line that is not an event. line: number in its file, from 1."""

    path: Path
    line: int
    reason: str


class SkipLog:
    """The skipped lines of a run: all counted, the first ones described."""

    def __init__(self) -> None:
        self.skips: list[Skip] = []
        self.by_file: Counter[str] = Counter()

    @property
    def count(self) -> int:
        return self.by_file.total()

    def add(self, path: Path, line: int, reason: str) -> None:
        self.by_file[path.name] += 1
        if len(self.skips) < MAX_SKIPS:
            self.skips.append(Skip(path=path, line=line, reason=reason))


class Decoders(NamedTuple):
    """How lines become events: of one line, and of several in one call (see schema/codec.py)."""

    line: Callable[[bytes, int, str], Event]
    lines: Callable[[bytes, int, str], list[Event] | None]


WHOLE = Decoders(decode, decode_lines)


class EventFile:
    """Reads one file from the last position. The file may grow or be renamed meanwhile.

    Args:
        path: set it again after the file was renamed.
        rank: of the events.
        stream: of the events.
        log: gets the bad lines.
        chunk_bytes: size of one read.
        process: data of the "process" mark that begins a file, if it is lost: the known part of the
        recorded view. None if nothing is known.
        decoders: how lines become events; a reader that needs only parts of them passes others.
    """

    def __init__(
        self,
        path: Path,
        rank: int,
        stream: str,
        log: SkipLog,
        *,
        chunk_bytes: int = CHUNK_BYTES,
        process: Mapping[str, Any] | None = None,
        decoders: Decoders = WHOLE,
    ) -> None:
        self.path = path
        self.rank = rank
        self.stream = stream
        self.offset = 0
        self.decoded = 0
        self._log = log
        self._chunk_bytes = chunk_bytes
        self._line = 0  # lines taken so far
        self._rest = bytearray()  # the beginning of an incomplete line
        self._is_dropping = False  # inside a line that is too long
        self._dropped = 0  # bytes of that line
        self._padded = 0  # size of the file when only zeros followed the offset
        self._gap: tuple[int, int] | None = None  # position of zeros; end of the data when seen
        self._process = process
        self._decoders = decoders
        self._next = 0  # number of the next event
        self._is_torn = False  # the current step has lost events

    def unread(self, size: int) -> int:
        """Bytes that may be read, of a file of this size."""
        return 0 if size == self._padded else max(0, size - self.offset)

    @property
    def whole(self) -> int:
        """End of the last complete line that was read."""
        return self.offset - len(self._rest)

    def read(self) -> Iterator[list[Event]]:
        """Events of the complete lines, in batches. Call again after the file has grown.

        Raises:
            FileNotFoundError: the file was renamed or removed.
        """
        while (events := self.read_piece()) is not None:
            if events:
                yield events

    def read_piece(self) -> list[Event] | None:
        """Events of the next chunk of the file, possibly empty; None if there is no more yet.

        Raises:
            FileNotFoundError: the file was renamed or removed.
        """
        if self._dropped > _GIVE_UP_BYTES:
            return None
        # The file is closed between chunks: a run may have more files than a process may open.
        with open_regular(self.path, buffering=0) as file:
            file.seek(self.offset)
            piece = file.read(self._chunk_bytes)
            if piece[:1] == b"\0":
                return self._past_zeros(file.fileno())
            if not piece:
                return None
            piece = piece.partition(b"\0")[0]
            self.offset += len(piece)
        return self._take(piece)

    def _past_zeros(self, descriptor: int, *, is_last: bool = False) -> list[Event] | None:
        """Skip zeros that are no end of the file: a line that was never completed, or a hole.

        Zeros at the end are space for the next lines; before the end, lines that are being copied.
        A copy has several lines, and its last bytes may be there first. So zeros stay what they are
        only if more was appended since than a copy can have, or if no more will come.

        Args:
            descriptor: of the file.
            is_last: whether no more lines will come.
        """
        size = os.fstat(descriptor).st_size
        data = _data_after(descriptor, self.offset, size)
        following = None if data is None else _line_after(descriptor, data, size)
        if data is None or following is None:
            self._padded = size if data is None else 0
            return None
        if os.pread(descriptor, 1, self.offset) == b"\0":
            if not is_last and self._is_being_copied(descriptor, data):
                self._padded = 0
                return None
            first = -(-self.offset // _BLOCK) * _BLOCK
            if data - first < _BLOCK:  # else checked events have become a hole: store/thin.py
                self._skip("a torn line")
            self._rest, self._is_dropping, self.offset = bytearray(), False, following
        return []

    def _is_being_copied(self, descriptor: int, data: int) -> bool:
        """Whether zeros at the offset, with data after them, may be lines that are being copied."""
        if data - self.offset > WINDOW:
            return False
        end, gap = end_of_data(descriptor), self._gap
        if gap is None or gap[0] != self.offset:
            self._gap = gap = (self.offset, end)
        return end - gap[1] <= WINDOW

    def pass_gap(self) -> bool:
        """Go past lines whose copy was never completed: no more will come. Whether there are any.

        `read` has stopped before them, and goes on behind them.
        """
        if self._gap is None:
            return False
        self._gap = None
        try:
            with open_regular(self.path, buffering=0) as file:
                return self._past_zeros(file.fileno(), is_last=True) is not None
        except FileNotFoundError as error:
            give_back(error)
            return False

    def finish(self) -> list[Event]:
        """No more lines will come. The last line counts if only its line feed is missing."""
        rest, self._rest = bytes(self._rest), bytearray()
        if self._is_dropping or not rest:
            if self._is_dropping:
                self._skip(_TOO_LONG)
            self._is_dropping = False
            return []
        try:
            event = decode(rest, self.rank, self.stream)
        except ValueError as error:
            give_back(error)
            self._skip("the last line is torn")
            return []
        self._line += 1
        self.decoded += 1
        return self._mended([event])

    def _take(self, piece: bytes) -> list[Event]:
        before, feed, rest = piece.rpartition(b"\n")
        complete = b"".join((self._rest, before)) if feed else b""
        if feed:
            self._rest = bytearray(rest)
        elif not self._is_dropping:
            self._rest += rest  # in place: a long line comes in many chunks
        if feed and self._is_dropping:
            _, feed, complete = complete.partition(b"\n")
            self._is_dropping, self._dropped = False, 0
            self._skip(_TOO_LONG)
        if self._is_dropping:
            self._dropped += len(piece)
        elif len(self._rest) > MAX_LINE_BYTES:
            self._rest, self._is_dropping = bytearray(), True
        if not feed:
            return []
        events = self._decoders.lines(complete, self.rank, self.stream)
        if events is None:
            return self._decode_each(complete.split(b"\n"))
        self._line += len(events)
        self.decoded += len(events)
        return self._mended(events)

    def _decode_each(self, lines: Sequence[bytes]) -> list[Event]:
        events: list[Event] = []
        for line in lines:
            try:
                event = self._decoders.line(line, self.rank, self.stream)
            except ValueError as error:
                give_back(error)
                self._skip(str(error))
                if foreign_number(line) == self._next:  # no known event is lost
                    self._next += 1
            else:
                self._line += 1
                self.decoded += 1
                events += self._mended([event])
        return events

    def _mended(self, events: list[Event]) -> list[Event]:
        """The events, with a mark at each position where events are missing."""
        after = self._next + len(events)
        if not self._is_torn and [e.seq for e in events] == list(range(self._next, after)):
            self._next = after
            return events
        mended: list[Event] = []
        for index, event in enumerate(events):
            missing = event.seq - self._next
            if missing < 0 and event.seq:  # a program that replaced another begins at 0 again
                line = self._line - len(events) + index + 1
                self._log.add(self.path, line, f"number {event.seq} after {self._next - 1}")
                continue
            self._next = event.seq + 1
            if missing > 0:
                if missing == event.seq and self._process is not None:
                    mended.append(MarkEvent(*event.header, text=Marks.PROCESS, data=self._process))
                if not (isinstance(event, MarkEvent) and event.text == Marks.DROPPED):
                    data = {"records": missing}
                    mended.append(MarkEvent(*event.header, text=Marks.DROPPED, data=data))
                self._is_torn = True
            if self._is_torn and isinstance(event, StepEvent):
                mended.append(event.replace(recorded=False))
                self._is_torn = False
            else:
                mended.append(event)
        return mended

    def _skip(self, reason: str) -> None:
        self._line += 1
        self._log.add(self.path, self._line, reason)


def _data_after(descriptor: int, start: int, size: int) -> int | None:
    """Position of the first byte from ``start`` on that is not zero; None if there is none."""
    while start < size:
        try:
            start = os.lseek(descriptor, start, os.SEEK_DATA)
        except OSError as error:  # none up to the end, or no support of holes
            give_back(error)
            if error.errno == errno.ENXIO:
                return None
        piece = os.pread(descriptor, CHUNK_BYTES, start)
        found = len(piece) - len(piece.lstrip(b"\0"))
        start += found
        if found < len(piece) or not piece:
            return start if piece else None
    return None


def _line_after(descriptor: int, start: int, size: int) -> int | None:
    """Position of the next line that has begun; None if there is none."""
    while start < size:
        piece = os.pread(descriptor, CHUNK_BYTES, start)
        feed = piece.find(b"\n")
        if feed >= 0:
            after = start + feed + 1
            return after if os.pread(descriptor, 1, after) not in (b"", b"\0") else None
        start += len(piece)
    return None
