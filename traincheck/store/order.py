"""Order among streams and ranks. Works on batches of events; reads no file.

Streams of a rank are merged by time, ranks by step. Every rank's events of step s come before any
rank's events of step s + 1. Events before a rank's first step come before all of step 0.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence

from traincheck.schema.events import Event

Batches = Iterator[Sequence[Event]]

BEFORE_STEPS = -1
_RESTART = 1 << 40  # positions of a second training process are greater than all of the first


def merge_streams(streams: Iterable[tuple[str, Batches]]) -> Batches:
    """Merge the streams of one rank by time; each keeps its own order, ties go by stream name.

    Like ``heapq.merge``, but the leading stream yields all events up to the first one of another,
    so an event costs one comparison.
    """
    heads: list[tuple[int, str, int]] = []  # time of the next event, stream, its index
    sources: list[tuple[Batches, Sequence[Event], int]] = []  # rest, current batch, position in it
    for index, (name, batches) in enumerate(streams):
        batch = next(batches, ())
        sources.append((batches, batch, 0))
        if batch:
            heads.append((batch[0].time_ns, name, index))
    heapq.heapify(heads)
    while heads:
        _, name, index = heapq.heappop(heads)
        batches, batch, start = sources[index]
        if not heads:
            yield batch[start:]
            yield from batches
            return
        next_ns, next_name, _ = heads[0]
        last_ns = next_ns if name < next_name else next_ns - 1
        while batch:
            stop = _first_after(batch, start, last_ns)
            yield batch[start:stop]
            if stop < len(batch):
                sources[index] = (batches, batch, stop)
                heapq.heappush(heads, (batch[stop].time_ns, name, index))
                break
            batch, start = next(batches, ()), 0
        else:
            sources[index] = (batches, (), 0)


def _first_after(batch: Sequence[Event], start: int, last_ns: int) -> int:
    """Index of the first event at or after ``start`` that is later than ``last_ns``."""
    for index in range(start, len(batch)):
        if batch[index].time_ns > last_ns:
            return index
    return len(batch)


class RankClock:
    """The position of a rank in its training, from its events alone.

    One process leads: the one that makes steps. Events of other processes, such as DataLoader
    workers, belong to the position that the leader has reached. When another process begins to make
    steps from an earlier number, the rank was restarted: positions continue from there.
    """

    def __init__(self) -> None:
        self.position = BEFORE_STEPS  # later events are at this position or after it
        self._leader: str | None = None
        self._led: set[str] = set()
        self._base = 0
        self._pids: dict[str, str] = {}

    def place(self, event: Event) -> int:
        """Position of the rank's next event: the step it belongs to, or ``BEFORE_STEPS``."""
        step = event.step
        if step is None:
            return self.position
        pid = self._pids.get(event.stream) or self._pid(event.stream)
        if pid != self._leader:
            if event.kind != "step" and (self._leader is not None or event.stage == "init"):
                return self.position
            if not self._may_lead(pid, step):
                return self.position
        if event.kind == "step":
            place = max(self.position, self._base + step)
            self.position = place + 1
            return place
        if self._base + step > self.position and (step or event.stage != "init"):
            self.position = self._base + step
        return self.position

    def split(self, events: Sequence[Event]) -> Iterator[tuple[int, Sequence[Event]]]:
        """The events in runs of one position."""
        start, current = 0, None
        last: Event | None = None
        for index, event in enumerate(events):
            # Nearly all events are of the step and the stream of the one before.
            if (
                last is not None
                and event.step == last.step
                and event.stream is last.stream
                and event.stage == last.stage
                and event.kind != "step"
            ):
                continue
            place = self.place(event)
            last = None if event.kind == "step" else event
            if place != current:
                if current is not None:
                    yield current, events[start:index]
                start, current = index, place
        if current is not None:
            yield current, events[start:]

    def _pid(self, stream: str) -> str:
        pid = self._pids[stream] = stream.partition("-")[0]
        return pid

    def _may_lead(self, pid: str, step: int) -> bool:
        if pid in self._led:
            return False  # two processes that make steps in parallel: the second one led last
        if self._leader is not None and self._base + step < self.position - 1:
            self._base += _RESTART
        self._led.add(pid)
        self._leader = pid
        return True


def merge_ranks(ranks: Iterable[tuple[int, Batches]]) -> Batches:
    """Merge ranks by position; within one position the lower rank comes first."""
    heads = []
    for rank, batches in ranks:
        placed = _placed(batches)
        head = next(placed, None)
        if head is not None:
            heads.append((head[0], rank, head[1], placed))
    heapq.heapify(heads)  # positions and ranks differ, so batches are never compared
    while heads:
        position, rank, batch, placed = heads[0]
        yield batch
        head = next(placed, None)
        if head is None:
            heapq.heappop(heads)
        else:
            heapq.heapreplace(heads, (max(position, head[0]), rank, head[1], placed))


def _placed(batches: Batches) -> Iterator[tuple[int, Sequence[Event]]]:
    clock = RankClock()
    for batch in batches:
        yield from clock.split(batch)
