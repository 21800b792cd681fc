"""Limit the size of the trace of a run that is checked live.

Checked events are dropped from the middle of the event files: the first and the newest steps stay.
Meanwhile the files have holes, which take no space. The processes that append to them do not
notice. A trace that is kept is rewritten without its holes when the run is over: an ordinary trace
with missing numbers.
"""

from __future__ import annotations

import ctypes
import heapq
import os
import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import BinaryIO

from traincheck.schema.events import Event
from traincheck.schema.files import open_regular, private
from traincheck.schema.marks import Marks
from traincheck.store.live import LiveStream
from traincheck.store.manifest import process_exists, read_manifest, write_manifest

FIRST_STEPS = 4  # that stay, with everything before them: models, optimizers, their first state
_BLOCK = 4096
_BEGINNING = 1 << 14  # bytes that stay in any file: the mark of its process
_HOLE, _SAME_SIZE = 2, 1  # FALLOC_FL_PUNCH_HOLE, FALLOC_FL_KEEP_SIZE
_WITHOUT_STEPS = 4  # a share of the limit: a process that writes more before a step does not train
_TIME = re.compile(rb'\{"k":"\w+","n":\d+,"t":(\d+)')


@dataclass(slots=True)
class _Process:
    """One process.

    Attributes:
        steps: time and number of the ends of the kept steps, except the first ones.
        first_ns: when the first steps ended; -1 if there are none to keep, None until known.
        dropped_ns: time up to which events were dropped.
        size: bytes read.
    """

    steps: deque[tuple[int, int]] = field(default_factory=deque)
    first_ns: int | None = None
    dropped_ns: int = -1
    size: int = 0


@dataclass(slots=True)
class _File:
    """One event file. Positions are bytes, at the ends of lines.

    Attributes:
        process: the process that writes it.
        head: end of the part that stays at the beginning.
        is_head_known: whether it is final.
        hole_end: end of the dropped part after it.
        freed: end of the hole in the file system.
        parts: the following parts, by their end and the time of their last event.
    """

    process: _Process
    head: int = 0
    is_head_known: bool = False
    hole_end: int = 0
    freed: int = 0
    parts: deque[tuple[int, int]] = field(default_factory=deque)

    def settle_head(self) -> None:
        """Add the events of the first steps to the head, once these are known."""
        first_ns = self.process.first_ns
        while not self.is_head_known and first_ns is not None and self.parts:
            if first_ns >= 0:
                end, last_ns = self.parts.popleft()
                self.head = self.hole_end = self.freed = end
                self.is_head_known = last_ns >= first_ns
            else:
                self.is_head_known = True


@dataclass(frozen=True, slots=True)
class Gap:
    """The steps that were dropped from a trace, first and last."""

    first: int
    last: int


class Thinner:
    """Drops checked events. One for each followed run.

    Args:
        limit: maximum bytes of the event files, except for events that are not checked yet.

    Attributes:
        note: why events cannot be dropped; empty if they can.
    """

    def __init__(self, limit: int) -> None:
        self.note = ""
        self._limit = limit
        self._files: dict[LiveStream, _File] = {}
        self._processes: dict[int, _Process] = {}
        self._fallocate = ctypes.CDLL(None, use_errno=True).fallocate
        self._fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)

    def read(self, stream: LiveStream) -> None:
        """A chunk of this stream was read."""
        file = self._files.get(stream)
        if file is None:
            process = self._processes.setdefault(stream.pid, _Process())
            file = self._files[stream] = _File(process)
        end = file.parts[-1][0] if file.parts else file.hole_end
        whole = stream.file.whole
        file.process.size += whole - end
        if file.process.first_ns is None and file.process.size > self._limit // _WITHOUT_STEPS:
            file.process.first_ns = stream.read_until_ns
        file.parts.append((whole, stream.read_until_ns))

    def note_event(self, stream: LiveStream, event: Event) -> None:
        """An event that ends a step, or is a mark. Called before `read`."""
        process = self._processes.setdefault(stream.pid, _Process())
        if event.kind == "mark":
            if event.text == Marks.PROCESS and event.data.get("worker"):
                process.first_ns = -1
        elif event.step is not None:
            process.steps.append((event.time_ns, event.step))
            if process.first_ns is None and event.step >= FIRST_STEPS - 1:
                process.first_ns = event.time_ns
                process.steps.clear()

    def thin(self, checked_ns: Mapping[int, float]) -> list[LiveStream]:
        """Drop the oldest checked events, if there are too many; see `limit`.

        Args:
            checked_ns: by rank, the time before which all events were checked.

        Returns:
            Streams whose files are removed: their processes have ended and all events were dropped.
        """
        total = sum(s.file.whole - f.hole_end + f.head for s, f in self._files.items())
        if self.note or total <= self._limit * 3 // 4:
            return []
        for pid, process in self._processes.items():
            if process.first_ns is None and not process.steps and not process_exists(pid):
                process.first_ns = -1  # it trained nothing
        heap = []
        for index, (stream, file) in enumerate(self._files.items()):
            file.settle_head()
            if file.is_head_known and file.parts:
                heap.append((file.parts[0][1], index, stream, file))
        heapq.heapify(heap)
        while heap and total > self._limit // 2:
            last_ns, index, stream, file = heapq.heappop(heap)
            if last_ns >= checked_ns.get(stream.file.rank, -1):
                continue
            end, _ = file.parts.popleft()
            total -= end - file.hole_end
            file.hole_end = end
            file.process.dropped_ns = max(file.process.dropped_ns, last_ns)
            if file.parts:
                heapq.heappush(heap, (file.parts[0][1], index, stream, file))
        for process in self._processes.values():
            while process.steps and process.steps[0][0] <= process.dropped_ns:
                process.steps.popleft()
        return [s for s, f in list(self._files.items()) if self._free(s, f)]

    def _free(self, stream: LiveStream, file: _File) -> bool:
        """Make a hole in place of dropped events. Returns whether the file could be removed."""
        path = stream.file.path
        try:
            if file.process.first_ns == -1 and self._is_used_up(stream, file):
                path.unlink()
                del self._files[stream]
                return True
            start = -(-max(file.freed, file.head, _BEGINNING) // _BLOCK) * _BLOCK
            end = file.hole_end // _BLOCK * _BLOCK
            if end > start and self._punch(path, start, end):
                file.freed = end
        except FileNotFoundError:  # renamed just now: next time
            return False
        except OSError as error:
            self._give_up(path, error.strerror)
        return False

    def _is_used_up(self, stream: LiveStream, file: _File) -> bool:
        """Whether no event of a file is left, and none will come."""
        is_empty = not file.parts and file.hole_end == stream.file.offset > 0
        return is_empty and not process_exists(stream.pid)

    def _punch(self, path: Path, start: int, end: int) -> bool:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            failed = self._fallocate(descriptor, _HOLE | _SAME_SIZE, start, end - start)
        finally:
            os.close(descriptor)
        if failed:
            self._give_up(path, os.strerror(ctypes.get_errno()))
        return not failed

    def _give_up(self, path: Path, reason: str | None) -> None:
        self.note = (
            f"the trace exceeds its limit, because files in {path.parent} cannot be rewritten: "
            f"{reason}"
        )

    def compact(self) -> Gap | None:
        """Rewrite the files of a finished run without holes. None if there are none.

        All training processes keep the same steps: otherwise their ranks could not be compared.

        Raises:
            OSError: a file could not be written.
        """
        if all(process.dropped_ns < 0 for process in self._processes.values()):
            return None
        thinned = [p for p in self._processes.values() if p.dropped_ns >= 0 and p.steps]
        last = max((p.steps[0][1] for p in thinned), default=0)
        cuts = {pid: _cut(process, last) for pid, process in self._processes.items()}
        ranks: dict[int, tuple[float, float]] = {}  # of the training process of a rank
        for stream in self._files:
            first_ns, cut_ns = cuts[stream.pid]
            if cut_ns >= 0:
                ranks[stream.file.rank] = first_ns, cut_ns
        for stream, file in self._files.items():
            of_rank = ranks.get(stream.file.rank, (inf, -1))
            is_worker = file.process.first_ns == -1
            # Rewrite a file without its hole and without the lines of a time interval.
            path = stream.file.path
            from_ns, until_ns = of_rank if is_worker else cuts[stream.pid]
            temporary = path.with_name(f".{path.name}.thin")
            with open_regular(path) as old, open(temporary, "wb", opener=private) as new:
                os.fchmod(new.fileno(), os.fstat(old.fileno()).st_mode & 0o777)
                new.write(old.readline(_BEGINNING))  # its process mark, which always stays
                for line in _lines(old, file):
                    line = line.rstrip(b"\0")  # noqa: PLW2901  # of a process that was killed
                    time = _TIME.match(line)
                    if time is None or not from_ns < int(time[1]) <= until_ns:
                        new.write(line)
            temporary.replace(path)
        return Gap(FIRST_STEPS, last)


def _cut(process: _Process, last: int) -> tuple[float, float]:
    """Interval (start excluded) in which events of a process are dropped; end -1: none."""
    if process.first_ns is None or process.first_ns < 0:
        return inf, -1
    same = next((time_ns for time_ns, step in process.steps if step == last), None)
    if same is None and process.dropped_ns >= 0:
        same = process.steps[0][0] if process.steps else None
        return process.first_ns, inf if same is None else same
    return process.first_ns, -1 if same is None else same


def _lines(old: BinaryIO, file: _File) -> Iterator[bytes]:
    while file.hole_end <= file.head or old.tell() < file.head:
        line = old.readline()
        if not line:
            return
        yield line
    old.seek(file.hole_end)
    yield from old


def record_gap(directory: Path, gap: Gap, limit: str) -> str:
    """Write the dropped steps and the file sizes to the manifest. Returns the note.

    Raises:
        OSError: it could not be written.
    """
    what = f"steps {gap.first:,} to {gap.last:,}" if gap.last >= gap.first else "some events"
    note = f"{what} were checked during the run, and then dropped to keep the trace below {limit}"
    manifest, _ = read_manifest(directory)
    if manifest is not None:
        processes = tuple({**one, "bytes": _size(directory, one)} for one in manifest.processes)
        notes = (*manifest.notes, note)
        write_manifest(directory, replace(manifest, notes=notes, processes=processes))
    return note


def _size(directory: Path, process: Mapping[str, object]) -> int:
    names = process.get("files")
    paths = [directory / str(name) for name in names] if isinstance(names, list) else []
    return sum(path.stat().st_size for path in paths if path.is_file())
