"""Follow a run while it is recorded. Yields the same events as a later replay, in the same order.

This holds for each process and rank; if processes of one rank write late, their events come in
order of arrival. live.py defines the order. This module finds new events and decides when the run
is over.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf
from pathlib import Path

from traincheck.errors import TraceFormatError
from traincheck.schema.events import Event
from traincheck.schema.layout import MANIFEST
from traincheck.store.lines import WHOLE, Decoders, EventFile, Skip, SkipLog
from traincheck.store.live import LiveRank, LiveStream, in_order
from traincheck.store.manifest import (
    Manifest,
    check_run,
    is_bare,
    is_run,
    lost_notes,
    process_exists,
    read_manifest,
)
from traincheck.store.reader import ProcessInfo, event_files, process_infos
from traincheck.store.thin import Gap, Thinner

POLL_S = 0.2
SETTLE_S = 10.0
SILENT_S = 60.0
DEAD_AFTER_S = 30.0
_MOST_HELD = 200_000  # events in memory, over all ranks
_LEAST_HELD = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Patience:
    """Timeouts in seconds without new events; see TailReader."""

    settle_s: float
    silent_s: float
    dead_after_s: float


class TailReader:
    """The events of a run that may still be running. Ends with the run.

    Args:
        path: the run directory; it and its files may appear later.
        poll_s: seconds between two reads.
        settle_s: a rank that is silent for so long releases its unfinished step.
        silent_s: a rank that is silent for so long no longer holds back the others. If there are
        several ranks, a mark "stalled" reports it.
        dead_after_s: the run is over if no event comes for so long and none of its processes is
        alive.
        limit: maximum bytes of the event files; delivered events are dropped beyond it. None: no
        limit. Only for the launcher of the run: other readers miss dropped events.
        stop: called at every read; once true, the present events are delivered and the reader ends.
        sleep: waits; replaced in tests.
        clock: monotonic seconds; replaced in tests.
        decoders: how lines become events; a reader that needs only parts of them passes others.

    Raises:
        TraceFormatError: ``path`` is a file, a folder of runs or of something else.
    """

    def __init__(  # noqa: PLR0913  # all but one have a default
        self,
        path: Path | str,
        *,
        poll_s: float = POLL_S,
        settle_s: float = SETTLE_S,
        silent_s: float = SILENT_S,
        dead_after_s: float = DEAD_AFTER_S,
        limit: int | None = None,
        stop: Callable[[], bool] | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        decoders: Decoders = WHOLE,
    ) -> None:
        self.path = Path(path)
        self._decoders = decoders
        if not (is_bare(self.path) or (self.path.is_dir() and is_run(self.path))):
            check_run(self.path)
        self.manifest: Manifest | None = read_manifest(self.path)[0]
        self.notes: list[str] = []
        self._poll_s = poll_s
        self._patience = _Patience(settle_s=settle_s, silent_s=silent_s, dead_after_s=dead_after_s)
        self._stop = stop or (lambda: False)
        self._sleep = sleep
        self._clock = clock
        self._log = SkipLog()
        self._thinner = None if limit is None else Thinner(limit)
        self.behind = 0  # bytes that were unread at the last listing of the files

    @property
    def skipped(self) -> int:
        """How many lines were skipped so far."""
        return self._log.count

    @property
    def skips(self) -> Sequence[Skip]:
        """The lines that were skipped so far, the first thousand of them."""
        return self._log.skips

    @property
    def ranks(self) -> list[int]:
        """The ranks that have left events so far."""
        return sorted({rank for _, rank, _ in event_files(self.path)})

    @property
    def processes(self) -> list[ProcessInfo]:
        """The processes that have left events so far."""
        return process_infos(event_files(self.path))

    def events(self) -> Iterator[Event]:
        """All events from the beginning of the run; waits for more until it is over.

        Raises:
            TraceFormatError: the run is over and has lines, but no event.
        """
        return chain.from_iterable(self._batches())

    def _batches(self) -> Iterator[Sequence[Event]]:
        self._log = SkipLog()
        following = _Following(
            self.path, self._log, self._clock, self._patience, self._thinner, self._decoders
        )
        is_alive = process_exists if self._is_local() else _unknown
        is_over = grew = False
        grew_at_s = self._clock()
        while not (is_over and following.is_done):
            quiet_s = None if grew else self._clock() - grew_at_s
            is_over = is_over or self._is_over(following, quiet_s)
            grew = following.look(is_alive, is_over=is_over)
            self.behind = following.behind
            yield from following.take()
            following.thin()
            if grew:
                grew_at_s = self._clock()
            elif not is_over:
                self._sleep(self._poll_s)
        yield from following.finish()
        self.notes.extend([*lost_notes(self.path, self.manifest), *following.notes])
        if not following.delivered and not self._stop():
            self._refuse()

    def compact(self) -> Gap | None:
        """Rewrite the files of a finished run without dropped events. Returns the dropped steps.

        Raises:
            OSError: a file could not be written.
        """
        return None if self._thinner is None else self._thinner.compact()

    def _is_over(self, following: _Following, quiet_s: float | None) -> bool:
        """Whether the files are complete. Called before they are read.

        Args:
            following: what is read.
            quiet_s: for how long no event has come; None if the last read had some.
        """
        is_stopped = self._stop()  # before the manifest, which the caller has ended
        if quiet_s is None and self.manifest is not None and not is_stopped:
            return False  # more may follow; the next quiet round tells
        self.manifest = read_manifest(self.path)[0] or self.manifest
        if (self.manifest is not None and self.manifest.ended) or is_stopped:
            return True
        dead_after_s = self._patience.dead_after_s
        if (
            quiet_s is None
            or quiet_s < dead_after_s
            or not self._is_local()
            or self._is_alive(following)
        ):
            return False
        self.notes.append(
            f"{self.path / MANIFEST} has no end of the run, but all its processes are gone and "
            f"nothing was recorded for {dead_after_s:g} s; the run is taken to be over"
        )
        return True

    def _is_local(self) -> bool:
        """Whether the run is on this machine, so that its processes can be found."""
        hostname = None if self.manifest is None else self.manifest.hostname
        return hostname is None or hostname == platform.node()

    def _is_alive(self, following: _Following) -> bool:
        launcher = None if self.manifest is None else self.manifest.launcher_pid
        pids = following.pids if launcher is None else {launcher, *following.pids}
        return any(process_exists(pid) for pid in pids)

    def _refuse(self) -> None:
        check_run(self.path, may_be_empty=True)
        if not self.skipped:
            return
        raise TraceFormatError(
            f"{self.path} has no events and {self.skipped} unreadable lines",
            fix=f"read the notes in {self.path / MANIFEST}, and record the run again",
        )


class PollReader:
    """The events of a run in this process: yields the new events on each call.

    Never waits. Events that were read may be dropped, so that a long run needs no disk space.

    Args:
        path: the run directory.
    """

    manifest: Manifest | None = None

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.notes: list[str] = []
        self._log = SkipLog()
        patience = _Patience(settle_s=inf, silent_s=0, dead_after_s=inf)
        self._following = _Following(self.path, self._log, time.monotonic, patience)

    @property
    def skipped(self) -> int:
        """How many lines were skipped so far."""
        return self._log.count

    def new(self) -> Iterator[Event]:
        """Events of the steps that have ended since the last call."""
        grew = True
        while grew:
            grew = self._following.look(_unknown, is_over=False)
            for batch in self._following.take():
                yield from batch

    def rest(self) -> Iterator[Event]:
        """All remaining events; no more will come."""
        yield from self.new()
        for batch in self._following.finish():
            yield from batch
        self.notes.extend([*lost_notes(self.path, self.manifest), *self._following.notes])

    def drop(self, stream: str, least_bytes: int, empty: Callable[[int], bool]) -> None:
        """Empty the file of a stream, if it is large and read to its end.

        Args:
            stream: its name.
            least_bytes: a smaller file stays as it is.
            empty: empties the file if it has so many bytes, and returns whether it did.
        """
        self._following.drop(stream, least_bytes, empty)


class _Following:
    """The files of one run, read in rounds."""

    def __init__(
        self,
        path: Path,
        log: SkipLog,
        clock: Callable[[], float],
        patience: _Patience,
        thinner: Thinner | None = None,
        decoders: Decoders = WHOLE,
    ) -> None:
        self._decoders = decoders
        self.delivered = 0
        self.behind = 0
        self._thinner = thinner
        self._path = path
        self._log = log
        self._clock = clock
        self._patience = patience
        self._began_s = clock()
        self._round = 0
        self._streams: dict[tuple[int, int], LiveStream] = {}  # by device and inode
        self._lost: set[tuple[int, int]] = set()
        self._ranks: dict[int, LiveRank] = {}
        self._grew = False  # in the last round

    @property
    def pids(self) -> set[int]:
        """The processes that have written."""
        return {stream.pid for stream in self._streams.values()}

    @property
    def is_done(self) -> bool:
        """Whether every rank is gone."""
        return all(rank.is_gone for rank in self._ranks.values())

    @property
    def notes(self) -> list[str]:
        """Notes about files that could not be read."""
        lost = [self._streams[key].file.path for key in self._lost]
        notes = [f"{path} was moved away or removed while it was followed" for path in lost]
        return [*notes, self._thinner.note] if self._thinner and self._thinner.note else notes

    def look(self, is_alive: Callable[[int], bool], *, is_over: bool) -> bool:
        """Read and queue a chunk of each file with new events. Returns whether there was any.

        Args:
            is_alive: whether a process exists, as far as known.
            is_over: the files are complete.
        """
        self._round += 1
        ended = self._ended(is_alive, is_over=is_over)
        self._find_files()
        now_s = self._clock()
        most = max(_LEAST_HELD, _MOST_HELD // max(1, len(self._streams)))
        first = min(self._ranks.values(), key=lambda r: (r.frontier, r.rank), default=None)
        grew = False
        for rank in self._ranks.values():
            # The rank that all others wait for is always read; one that is far ahead waits on disk.
            if rank is first or rank.held < most * len(rank.streams):
                room = most if self._grew or rank is not first else inf  # else it would be stuck
                grew |= rank.read(self._round, now_s, room)
            # Whether a rank has been silent for long, regardless of the others.
            is_stalled = len(self._ranks) > 1 and (
                0 < self._patience.silent_s <= now_s - rank.grew_at_s
            )
            is_settled = is_stalled or now_s - rank.grew_at_s >= self._patience.settle_s
            is_ended = is_over or rank.rank in ended
            rank.release(self._round, is_complete=is_ended or is_settled, most=most)
            is_idle = is_ended or not rank.streams or is_stalled or self._is_silent(rank, now_s)
            if is_idle and rank.is_at_end(self._round):
                rank.is_gone = True
                if is_stalled and not is_over:
                    rank.stall(now_s)
        self._grew = grew
        return grew

    def take(self) -> Iterator[Sequence[Event]]:
        """The events that may be released."""
        for batch in in_order(list(self._ranks.values()), self._missing()):
            self.delivered += len(batch)
            yield batch

    def drop(self, stream: str, least_bytes: int, empty: Callable[[int], bool]) -> None:
        """Empty the file of a stream: `PollReader.drop`."""
        for known in self._streams.values():
            file = known.file
            if file.stream == stream and file.offset >= least_bytes and empty(file.offset):
                file.offset = 0

    def thin(self) -> None:
        """Drop released events from the files, if there is a limit. All of them were checked."""
        if self._thinner is None:
            return
        handed_on_ns = {rank.rank: rank.handed_on_ns for rank in self._ranks.values()}
        for stream in self._thinner.thin(handed_on_ns):
            del self._ranks[stream.file.rank].streams[stream.file.stream]
            self._streams = {key: s for key, s in self._streams.items() if s is not stream}

    def finish(self) -> Iterator[Sequence[Event]]:
        """All remaining events; the files are complete."""
        for stream in self._streams.values():
            while stream.file.pass_gap():
                while stream.read(self._round) is not None:
                    pass
            stream.take(stream.file.finish())
        for rank in self._ranks.values():
            rank.release(self._round, is_complete=True, most=0)
            rank.is_gone = True
        for batch in in_order(list(self._ranks.values()), ()):
            self.delivered += len(batch)
            yield batch

    def _ended(self, is_alive: Callable[[int], bool], *, is_over: bool) -> set[int]:
        """Ranks without a live process. Called before reading: their events are complete then."""
        if is_over or len(self._ranks) == 1:  # a single rank holds back no other
            return set()
        return {
            rank.rank
            for rank in self._ranks.values()
            if rank.streams and not any(is_alive(s.pid) for s in rank.streams.values())
        }

    def _is_silent(self, rank: LiveRank, now_s: float) -> bool:
        """Whether a rank is silent while others are active."""
        newest_s = max(other.grew_at_s for other in self._ranks.values())
        return newest_s > rank.grew_at_s and now_s - rank.grew_at_s >= self._patience.silent_s

    def _find_files(self) -> None:
        """Find new files, and files that were renamed when their rank became known."""
        seen = set()
        self.behind = 0
        for path, rank, stream in event_files(self._path):
            try:
                status = path.stat()
            except FileNotFoundError:
                continue  # renamed since the folder was listed: found in the next round
            key = (status.st_dev, status.st_ino)
            seen.add(key)
            known = self._streams.get(key)
            if known is None:
                file = EventFile(path, rank, stream, self._log, decoders=self._decoders)
                known = self._streams[key] = LiveStream(file)
            elif known.file.path != path:
                del self._ranks[known.file.rank].streams[known.file.stream]
                known.file.path = path
                known.move_to(rank)
            self._rank(rank).streams[stream] = known
            self.behind += known.file.unread(status.st_size)
        self._lost = self._streams.keys() - seen
        for key in self._lost:
            self._streams[key].end_seen = self._round  # no wait for it

    def _rank(self, rank: int) -> LiveRank:
        found = self._ranks.get(rank)
        if found is None:
            found = self._ranks[rank] = LiveRank(rank, self._clock(), self._thinner)
        return found

    def _missing(self) -> list[int]:
        """Ranks that exist according to the others and that may still appear."""
        if self._clock() - self._began_s >= self._patience.silent_s:
            return []
        num_expected = max((rank.world_size for rank in self._ranks.values()), default=0)
        return [rank for rank in range(num_expected) if rank not in self._ranks]


def _unknown(pid: int) -> bool:
    """A process of another machine counts as alive."""
    return True
