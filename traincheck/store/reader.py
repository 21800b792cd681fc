"""Replay a finished or abandoned run. tail.py follows growing runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from traincheck.errors import TraceFormatError
from traincheck.schema.events import Event
from traincheck.schema.files import open_regular, parse_json
from traincheck.schema.layout import EVENT_GLOB, parse_event_file_name
from traincheck.schema.marks import Marks
from traincheck.store.lines import CHUNK_BYTES, WHOLE, Decoders, EventFile, Skip, SkipLog
from traincheck.store.manifest import Manifest, check_run, ending_notes, lost_notes, read_manifest
from traincheck.store.order import merge_ranks, merge_streams

_READ_AHEAD_BYTES = 1 << 25  # of all files of a run together
_MIN_CHUNK_BYTES = 1 << 14
_FIRST_LINE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessInfo:
    """One process of a run. facts: the data of its "process" mark; empty if that is missing."""

    rank: int
    pid: int
    files: tuple[Path, ...]
    facts: dict[str, Any]

    @property
    def is_worker(self) -> bool:
        """Whether it was a DataLoader worker."""
        return bool(self.facts.get("worker"))


class TraceReader:
    """The events of one recorded run, any number of times.

    Args:
        path: the run directory.
        may_be_empty: whether a run that ended without events is accepted.

    Raises:
        TraceFormatError: ``path`` is not a run, or a newer traincheck wrote it.
    """

    def __init__(self, path: Path | str, *, may_be_empty: bool = False) -> None:
        self.path = Path(path)
        self._may_be_empty = may_be_empty
        check_run(self.path, may_be_empty=may_be_empty)
        self.manifest: Manifest | None
        self.manifest, notes = read_manifest(self.path)
        self.notes: list[str] = notes + lost_notes(self.path, self.manifest)
        self.notes += ending_notes(self.path, self.manifest)
        self._log = SkipLog()
        self._reading: list[EventFile] = []
        self._files = event_files(self.path)
        if not self._files and any(self.path.glob(EVENT_GLOB)):
            raise TraceFormatError(
                f"{self.path} has event files, but none is named events-r<rank>-p<pid>-t<n>.jsonl",
                fix="do not rename the files of a trace",
            )

    @property
    def ranks(self) -> list[int]:
        """The ranks that left events."""
        return sorted({rank for _, rank, _ in self._files})

    @property
    def bytes_total(self) -> int:
        """Size of all event files, in bytes."""
        return sum(path.stat().st_size for path, _, _ in self._files)

    @property
    def bytes_read(self) -> int:
        """Progress of the current reading, in bytes. Other threads may call this."""
        return sum(file.offset for file in self._reading)

    @property
    def skipped(self) -> int:
        """Number of lines that the last reading skipped."""
        return self._log.count

    @property
    def skips(self) -> Sequence[Skip]:
        """The lines that the last reading skipped, the first thousand of them."""
        return self._log.skips

    @property
    def processes(self) -> list[ProcessInfo]:
        """The processes that left events, by rank and pid."""
        return process_infos(self._files)

    def events(self) -> Iterator[Event]:
        """All events: streams of a rank merged by time, ranks by step (order.py).

        Raises:
            TraceFormatError: there are lines, but none of them is an event; or a file cannot be
            read.
        """
        return chain.from_iterable(self._batches(self._files, WHOLE))

    def rank_events(self, rank: int, decoders: Decoders = WHOLE) -> Iterator[Event]:
        """The events of one rank, its streams merged by time.

        Args:
            rank: of `ranks`.
            decoders: how lines become events.

        Raises:
            TraceFormatError: as `events`.
        """
        files = [file for file in self._files if file[1] == rank]
        return chain.from_iterable(self._batches(files, decoders))

    def _batches(
        self, chosen: Sequence[tuple[Path, int, str]], decoders: Decoders
    ) -> Iterator[Sequence[Event]]:
        self._log = SkipLog()
        ahead = _READ_AHEAD_BYTES // max(1, len(chosen))
        chunk_bytes = max(_MIN_CHUNK_BYTES, min(CHUNK_BYTES, ahead))
        known = None if self.manifest is None else self.manifest.settings
        process = None if not known else {"recorded": known.get("needs")}
        self._reading = files = [
            EventFile(
                path,
                rank,
                stream,
                self._log,
                chunk_bytes=chunk_bytes,
                process=process,
                decoders=decoders,
            )
            for path, rank, stream in chosen
        ]
        ranks = [
            (rank, merge_streams([(file.stream, _all_of(file)) for file in members]))
            for rank, members in groupby(files, key=lambda file: file.rank)
        ]
        yield from ranks[0][1] if len(ranks) == 1 else merge_ranks(ranks)
        if any(file.decoded for file in files):
            return
        if not self._log.count:
            if self._may_be_empty:
                return
            raise TraceFormatError(
                f"the event files of {self.path} are empty: the program ended before anything "
                "was recorded",
                fix="record the run again with traincheck-collect",
            )
        first = self._log.skips[0]
        raise TraceFormatError(
            f"{self.path} has no events: none of {self._log.count} lines can be read, "
            f"first {first.path.name}:{first.line}: {first.reason}",
            fix="the files were damaged or are not from traincheck; record the run again",
        )


def event_files(directory: Path) -> list[tuple[Path, int, str]]:
    """Path, rank and stream of every event file, by rank and stream."""
    found = []
    for path in directory.glob(EVENT_GLOB):
        parsed = parse_event_file_name(path.name)
        if parsed is not None and path.is_file():
            found.append((path, *parsed))
    return sorted(found, key=lambda file: file[1:])


def process_infos(files: Sequence[tuple[Path, int, str]]) -> list[ProcessInfo]:
    """The processes behind event files; a file begins with the facts about its process."""
    members: dict[tuple[int, int], list[Path]] = {}
    for path, rank, stream in files:
        members.setdefault((rank, int(stream[1 : stream.index("-")])), []).append(path)
    return [
        ProcessInfo(rank=rank, pid=pid, files=tuple(paths), facts=_process_facts(paths))
        for (rank, pid), paths in sorted(members.items())
    ]


def _process_facts(paths: Sequence[Path]) -> dict[str, Any]:
    for path in paths:
        try:
            with open_regular(path) as file:
                record = parse_json(file.readline(_FIRST_LINE_BYTES))
            if record["k"] == "mark" and record["text"] == Marks.PROCESS:
                return dict(record["data"])
        except (OSError, ValueError, KeyError, TypeError):
            continue  # events() counts and describes the bad line
    return {}


def _all_of(file: EventFile) -> Iterator[Sequence[Event]]:
    try:
        yield from file.read()
        while file.pass_gap():
            yield from file.read()
    except OSError as error:
        raise TraceFormatError(
            f"{file.path} cannot be read: {error.strerror}",
            fix="check its permissions, and that no other program moves the trace",
        ) from error
    last = file.finish()
    if last:
        yield last
