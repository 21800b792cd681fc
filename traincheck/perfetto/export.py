"""A run as one file for Perfetto: calls of each thread, steps, curves, and what happened once.

Events are written as they are read. What waits is bounded: see slices.py.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from traincheck.errors import OutputError
from traincheck.page.timeline import Timeline
from traincheck.perfetto.packets import PacketWriter
from traincheck.perfetto.slices import Nesting, Slice
from traincheck.schema.events import (
    BatchEvent,
    CallEvent,
    CheckpointEvent,
    CollectiveEvent,
    Event,
    MarkEvent,
    ProfileEvent,
    StepEvent,
    WarningEvent,
)
from traincheck.schema.files import private
from traincheck.schema.marks import Marks
from traincheck.schema.torch_api import Families
from traincheck.store.reader import TraceReader

FILE_NAME = "trace.pftrace"
_FIRST_TID = 1 << 24  # of threads but the main one: real ones are not known
_MOST_FLOWS = 64  # backward passes that lead to one optimizer step


@dataclass(slots=True, kw_only=True)
class Exported:
    """The file that was written.

    Attributes:
        path: of the file.
        slices: calls and steps.
        numbers: of counters.
        size: bytes.
    """

    path: Path
    slices: int = 0
    numbers: int = 0
    size: int = 0


@dataclass(frozen=True, slots=True)
class _Call:
    """A call as it is shown."""

    name: str
    category: str
    details: dict[str, Any]
    flows: tuple[int, ...] = ()


@dataclass(slots=True, kw_only=True)
class _Thread:
    track: int
    calls: Nesting[_Call] = field(default_factory=Nesting)


@dataclass(slots=True, kw_only=True)
class _Process:
    """A process, and its flows: numbers of the backward passes that the next step applies."""

    pid: int
    rank: int
    track: int
    steps: int
    counters: dict[str, int] = field(default_factory=dict)
    step_from_ns: int | None = None
    last_step_ns: int = 0
    flows: list[int] = field(default_factory=list)
    is_applied: bool = False


class _Numbers(Timeline):
    """The curves of a timeline, as a stream."""

    def __init__(self, give: Callable[[str, str, int, float], None]) -> None:
        super().__init__()
        self._give = give

    def curve(self, name: str, of: str, rank: int, step: int, value: float) -> None:
        """Pass a number of a curve on."""
        self._give(name, of, rank, value)

    def layers(self, name: str, rank: int, step: int, numbers: Mapping[str, float]) -> None:
        """Numbers of layers are no counters: there are too many to be shown as tracks."""


class _Exporter:
    """Turns events into packets."""

    def __init__(self, writer: PacketWriter, written: Exported) -> None:
        self._writer = writer
        self._written = written
        self._processes: dict[tuple[int, str], _Process] = {}
        self._by_rank: dict[int, _Process] = {}
        self._threads: dict[tuple[int, str], _Thread] = {}
        self._pids: set[int] = set()
        self._tids = itertools.count(_FIRST_TID)
        self._flows = itertools.count(1)
        self._timeline = _Numbers(self._count)
        self._now_ns = 0

    def add(self, event: Event) -> None:
        """Write an event, or keep it until those that enclose it are known."""
        process = self._process(event)
        self._now_ns = event.time_ns
        if isinstance(event, CallEvent):
            self._call(process, event)
        elif isinstance(event, StepEvent):
            self._step(process, event)
        elif isinstance(event, ProfileEvent):
            for kind, value in event.memory.items():
                if isinstance(value, int) and not isinstance(value, bool):
                    self._number(process, f"memory {kind}", value, "bytes")
        elif (once := _once(event)) is not None:
            name, details = once
            track = self._thread(event).track
            self._writer.instant(track, event.time_ns, name, event.kind, details)
        if process.step_from_ns is None and event.stage != "init" and event.step is not None:
            process.step_from_ns = getattr(event, "start_ns", event.time_ns)
        self._timeline.add(event)

    def finish(self) -> None:
        """Write the calls that wait for others."""
        for thread in self._threads.values():
            self._edges(thread, thread.calls.rest())

    def _process(self, event: Event) -> _Process:
        pid_text = event.stream.partition("-")[0]
        found = self._processes.get((event.rank, pid_text))
        if found is None:
            is_mark = isinstance(event, MarkEvent) and event.text == Marks.PROCESS
            is_worker = is_mark and bool(event.data.get("worker"))  # type: ignore[union-attr]
            pid = int(pid_text[1:])
            while pid in self._pids:  # of another machine
                pid += 1 << 22
            self._pids.add(pid)
            name = f"rank {event.rank}" + (", loader worker" if is_worker else "")
            track = self._writer.process(pid, name, event.rank)
            found = _Process(
                pid=pid, rank=event.rank, track=track, steps=self._writer.track(track, "steps")
            )
            self._processes[event.rank, pid_text] = found
        return found

    def _thread(self, event: Event) -> _Thread:
        found = self._threads.get((event.rank, event.stream))
        if found is None:
            process = self._process(event)
            number = event.stream.partition("-t")[2]
            is_main = number == "0"
            tid = process.pid if is_main else next(self._tids)
            name = "main thread" if is_main else f"thread {number}"
            found = _Thread(track=self._writer.thread(process.pid, tid, name))
            self._threads[event.rank, event.stream] = found
        return found

    def _call(self, process: _Process, event: CallEvent) -> None:
        thread = self._thread(event)
        call = _Call(*_described(event), self._flows_of(process, event))
        begin = min(event.start_ns or event.time_ns, event.time_ns)
        found = thread.calls.add(
            Slice(begin, event.time_ns, call), is_outermost=event.parent is None
        )
        self._edges(thread, found)

    def _flows_of(self, process: _Process, event: CallEvent) -> tuple[int, ...]:
        """Arrows from each backward pass to the optimizer steps that apply its gradients."""
        names = (event.api, event.family)
        if Families.BACKWARD in names:
            if process.is_applied:
                process.flows, process.is_applied = [], False
            number = next(self._flows)
            process.flows = [*process.flows, number][-_MOST_FLOWS:]
            return (number,)
        if Families.OPTIMIZER_STEP in names:
            process.is_applied = True
            return tuple(process.flows)
        return ()

    def _edges(self, thread: _Thread, edges: Iterator[Any]) -> None:
        writer, track = self._writer, thread.track
        for edge in edges:
            call = edge.what
            if call is None:
                writer.end(track, edge.time_ns)
                continue
            self._written.slices += 1
            writer.begin(
                track,
                edge.time_ns,
                call.name,
                category=call.category,
                details=call.details,
                flows=call.flows,
            )

    def _step(self, process: _Process, event: StepEvent) -> None:
        begin = process.last_step_ns or process.step_from_ns or event.time_ns
        end = max(begin, event.time_ns)
        details = {"stage": event.stage, "complete": event.complete or None}
        kind = "step" if event.recorded else "step not recorded"
        self._writer.begin(
            process.steps, begin, f"step {event.step}", category=kind, details=details
        )
        self._writer.end(process.steps, end)
        self._written.slices += 1
        process.last_step_ns = end
        self._by_rank[event.rank] = process

    def _count(self, name: str, of: str, rank: int, value: float) -> None:
        """A number of a curve: of the process that makes steps."""
        process = self._by_rank.get(rank) or next(
            (p for p in self._processes.values() if p.rank == rank), None
        )
        if process is None:
            return
        title = f"{name} {of}" if of else name
        if math.isfinite(value):
            self._number(process, title, value)
        else:
            self._writer.instant(
                process.steps, self._now_ns, f"{title} is not finite", "numbers", {"value": value}
            )

    def _number(self, process: _Process, title: str, value: float, unit: str = "") -> None:
        track = process.counters.get(title)
        if track is None:
            track = self._writer.counter_track(process.track, title, unit)
            process.counters[title] = track
        self._writer.count(track, self._now_ns, value)
        self._written.numbers += 1


def _described(event: CallEvent) -> tuple[str, str, dict[str, Any]]:
    """Name, category and details of a call."""
    is_module = event.family == Families.MODULE and event.module is not None
    category = "module" if is_module else "call"
    if Families.BACKWARD in (event.api, event.family):
        category = "backward"
    elif Families.OPTIMIZER_STEP in (event.api, event.family):
        category = "optimizer"
    details = {
        "api": event.api if is_module else None,
        "module": None if is_module else event.module,
        "step": event.step,
        "where": event.where,
        "exception": event.exception,
        "mode": None if event.training is None else ("train" if event.training else "eval"),
        "open": event.open or None,
    }
    return (event.module or event.api) if is_module else event.api, category, details


def _once(event: Event) -> tuple[str, dict[str, Any]] | None:
    """Name and details of what has no duration; None if it is not shown."""
    if isinstance(event, BatchEvent):
        return f"batch {event.index}", {"loader": event.loader, "epoch": event.epoch}
    if isinstance(event, CheckpointEvent):
        details = {"path": event.path, "target": event.target, "where": event.where}
        return f"checkpoint {event.op}", details
    if isinstance(event, CollectiveEvent):
        return event.op, {
            "group": event.group,
            "number": event.number,
            "variable": event.variable,
        }
    if isinstance(event, WarningEvent):
        return f"{event.category}: {event.text[:200]}", {"where": event.where}
    if isinstance(event, MarkEvent) and event.text not in (Marks.PROCESS, Marks.COLLECTIVE_ENTERED):
        return event.text, {"where": event.where}
    return None


def export_perfetto(reader: TraceReader, output: Path) -> Exported:
    """Write the file of a run.

    Args:
        reader: of the run.
        output: the file, or a folder that exists, in which it is named ``trace.pftrace``.

    Raises:
        MissingDependencyError: the package perfetto is not installed.
        OutputError: the file cannot be written.
        TraceFormatError: the run cannot be read.
    """
    path = output / FILE_NAME if output.is_dir() else output
    written = Exported(path=path)
    with _replaced(path) as file:
        exporter = _Exporter(PacketWriter(file), written)
        for event in reader.events():
            exporter.add(event)
        exporter.finish()
        written.size = file.tell()
    return written


@contextmanager
def _replaced(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes the place of another when it is complete."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb", opener=private) as file:
            yield file
        temporary.replace(path)
    except OSError as error:
        raise OutputError(
            f"{path}: cannot be written: {error.strerror or error}",
            fix="choose a file in a writable folder, on a disk with free space",
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
