"""The streams and ranks of a growing run, and the events that may be released.

Decides order only; tail.py decides when to read again and when to end.

Within a rank, events are held until no earlier ones can come. When the end of a step is read and
every file of the rank has been read again after that, all earlier events are complete: collection
writes a process' records before it writes the end of a step. So a step is released at its end,
merged by time as in a replay. A rank that is silent for a while, or holds too many events, releases
the events that it has.

Among ranks the order is that of a replay: by position (order.py), then by rank. The watermark is
the lowest position that an unfinished rank has reached; later events wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from math import inf
from typing import Protocol

from traincheck.schema.events import Event, MarkEvent
from traincheck.schema.marks import Marks
from traincheck.store.lines import EventFile
from traincheck.store.order import RankClock, merge_streams


class LiveStream:
    """One growing file, and its events that are still held."""

    def __init__(self, file: EventFile) -> None:
        self.file = file
        self.held: list[Event] = []
        self.read_until_ns = -1  # time of the last event read
        self.end_seen = -1  # the last round in which the file was read to its end

    @property
    def pid(self) -> int:
        """The process that writes it."""
        name = self.file.stream
        return int(name[1 : name.index("-")])

    def read(self, round_number: int) -> list[Event] | None:
        """Read one chunk; None if there was none, or the file was just renamed."""
        try:
            events = self.file.read_piece()
        except FileNotFoundError:
            return None
        if events is None:
            self.end_seen = round_number
            return None
        self.take(events)
        return events

    def take(self, events: Sequence[Event]) -> None:
        if events:
            self.held.extend(events)
            self.read_until_ns = max(self.read_until_ns, events[-1].time_ns)

    def release(self, limit_ns: float) -> list[Event]:
        """Release the events at the front that are not later than ``limit_ns``."""
        held = self.held
        stop = next((i for i, event in enumerate(held) if event.time_ns > limit_ns), len(held))
        self.held = held[stop:]
        return held[:stop]

    def move_to(self, rank: int) -> None:
        """The rank of the process became known after some of its events were read."""
        self.file.rank = rank
        self.held = [event.replace(rank=rank) for event in self.held]


class Follower(Protocol):
    """Notes the reads of each stream."""

    def note_event(self, stream: LiveStream, event: Event) -> None:
        """The end of a step, or a mark, was read."""

    def read(self, stream: LiveStream) -> None:
        """A chunk of it was read."""


class LiveRank:
    """The streams of one rank, and the events that wait for other ranks."""

    def __init__(self, rank: int, now_s: float, follower: Follower | None = None) -> None:
        self.rank = rank
        self._follower = follower
        self.streams: dict[str, LiveStream] = {}
        self.grew_at_s = now_s
        self.is_stalled = False  # its silence was reported to the others
        self.is_gone = False  # its processes ended and all events are read, or it stays silent
        self.world_size = 1  # number of ranks, as far as its processes show it
        self._last: Event | None = None  # of those read
        self._clock = RankClock()
        self._waiting: deque[tuple[int, Sequence[Event]]] = deque()
        self._waiting_events = 0
        self._step_ends: deque[tuple[int, int]] = deque()  # time of the end, round it was read in

    @property
    def frontier(self) -> float:
        """The position that every later event has at least."""
        if self._waiting:
            return self._waiting[0][0]
        return inf if self.is_gone else self._clock.position

    @property
    def held(self) -> int:
        """Number of events in memory."""
        return self._waiting_events + sum(len(s.held) for s in self.streams.values())

    def read(self, round_number: int, now_s: float, most: float) -> bool:
        """Read a chunk of each stream with fewer than ``most`` events. Returns whether one grew."""
        grew = False
        for stream in self.streams.values():
            if len(stream.held) >= most:
                continue
            events = stream.read(round_number)
            if events is None:
                continue
            grew = True
            self._last = events[-1] if events else self._last
            follower = self._follower
            for event in events:
                if event.kind == "step":
                    self._step_ends.append((event.time_ns, round_number))
                elif event.kind == "mark":
                    if event.text == Marks.PROCESS:
                        self.world_size = event.world_size or self.world_size
                else:
                    continue
                if follower is not None:
                    follower.note_event(stream, event)
            if follower is not None:
                follower.read(stream)
        if grew:
            self.grew_at_s, self.is_gone, self.is_stalled = now_s, False, False
        return grew

    def stall(self, now_s: float) -> None:
        """Queue a mark that the rank is silent, once, after everything that it has written."""
        last = self._last
        if self.is_stalled or last is None or any(s.held for s in self.streams.values()):
            return
        self.is_stalled = True
        data = {"silent_s": round(now_s - self.grew_at_s, 1)}
        mark = MarkEvent(*last.header, text=Marks.STALLED, data=data)
        self._waiting.append((self._clock.position, [mark]))
        self._waiting_events += 1

    def release(self, round_number: int, *, is_complete: bool, most: int) -> None:
        """Merge the events that are certainly complete, and queue them for the other ranks.

        Args:
            round_number: the number of the last round of reading.
            is_complete: no more events will come.
            most: also release if a stream holds this many events.
        """
        limit_ns: float = -1  # end of the last step after which every stream has been read again
        while self._step_ends:
            end_ns, seen = self._step_ends[0]
            if not all(
                s.read_until_ns > end_ns or s.end_seen > seen for s in self.streams.values()
            ):
                break
            limit_ns = max(limit_ns, end_ns)
            self._step_ends.popleft()
        if is_complete or any(len(s.held) >= most for s in self.streams.values()):
            # Unread events of a file are later than those that were read from it.
            unread = [
                s.read_until_ns - 1 for s in self.streams.values() if s.end_seen < round_number
            ]
            limit_ns = max(limit_ns, min(unread, default=inf))
        parts = [
            (name, iter((events,)))
            for name, stream in self.streams.items()
            if stream.held and (events := stream.release(limit_ns))
        ]
        for batch in merge_streams(parts):
            self._waiting_events += len(batch)
            self._waiting.extend(self._clock.split(batch))

    def pop(self) -> Sequence[Event]:
        """The first waiting events. There must be some."""
        _, events = self._waiting.popleft()
        self._waiting_events -= len(events)
        return events

    @property
    def handed_on_ns(self) -> float:
        """The time before which all read events have been released."""
        held = min((s.held[0].time_ns for s in self.streams.values() if s.held), default=inf)
        return min(held, self._waiting[0][1][0].time_ns) if self._waiting else held

    @property
    def is_waiting(self) -> bool:
        """Whether there are events that wait only for other ranks."""
        return bool(self._waiting)

    def is_at_end(self, round_number: int) -> bool:
        """Whether all of its files were read to their ends in this round."""
        return all(stream.end_seen == round_number for stream in self.streams.values())


def in_order(ranks: Sequence[LiveRank], missing: Sequence[int]) -> Iterator[Sequence[Event]]:
    """Take the events that may be released, in the order of a replay.

    Args:
        ranks: all known ranks.
        missing: ranks that are expected but have not been seen; they have not begun.
    """
    while True:
        first = min(ranks, key=lambda rank: (rank.frontier, rank.rank), default=None)
        if first is None or not first.is_waiting:
            return
        if first.frontier >= 0 and missing:
            return
        yield first.pop()
