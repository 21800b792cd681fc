"""Match the k-th collective call of each rank.

Uses the order of calls only, not steps: a run that hangs in a call ends no step.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from traincheck.readings.provider import RunState
from traincheck.schema.events import CollectiveEvent, Event, MarkEvent, StepEvent
from traincheck.schema.marks import Marks

PAIRWISE = frozenset({"send", "recv"})  # not all ranks participate
_ASYNCHRONOUS = frozenset({"isend", "irecv"})
_ANY_SHAPE = frozenset({"barrier", "all_to_all", "all_gather_object", "broadcast_object_list"})
_SAME_AFTER = frozenset({"all_reduce", "broadcast", "all_gather_into_tensor"})
_MOST_WAITING = 4096

_Place = tuple[Any, ...]


class Pair(NamedTuple):
    """One call of two ranks. is_back: both have its result."""

    first: CollectiveEvent
    other: CollectiveEvent
    is_back: bool = False

    @property
    def shapes(self) -> list[str] | None:
        """The shapes that each of them passed; None if shapes may differ."""
        first, other = self.first, self.other
        is_free = first.uneven or other.uneven or first.op in _ANY_SHAPE
        if self.is_back or is_free or first.shape is None or other.shape is None:
            return None
        return [f"{event.dtype}{list(event.shape or ())}" for event in (first, other)]

    @property
    def contents(self) -> list[str] | None:
        """The content of each after the call; None if it may differ, or is not known.

        For a sent tensor, the content before the call: the sender may overwrite it.
        """
        first, other = self.first, self.other
        if not self.is_back or first.dtype != other.dtype:
            return None
        if list(first.shape or ()) != list(other.shape or ()):
            return None
        found = [e.before if e.op == "send" else e.after for e in (first, other)]
        return None if None in found else [str(digest) for digest in found]

    @property
    def receiver(self) -> CollectiveEvent:
        """The receiving rank; for a call of all ranks, the one that came later."""
        return self.first if self.first.op == "recv" else self.other


class Meeting(NamedTuple):
    """A call that another rank has made before.

    Attributes:
        calls: of all ranks that have made it, in order of arrival.
        is_back: they have its result; else they have entered it.
    """

    calls: Mapping[int, CollectiveEvent]
    is_back: bool

    @property
    def pair(self) -> Pair:
        """The first call and the present one."""
        calls = list(self.calls.values())
        return Pair(calls[0], calls[-1], self.is_back)

    @property
    def by_rank(self) -> Pair:
        """The present call and one of another rank, that of the lower rank first."""
        newest = self.pair.other
        first = self.calls[min(self.calls)]
        other = newest if newest is not first else self.calls[max(self.calls)]
        return Pair(first, other, self.is_back)

    @property
    def is_same(self) -> bool:
        """Whether the ranks make the same operation."""
        first, other = self.pair.first.op, self.pair.other.op
        return first == other or {first, other} <= PAIRWISE


class Collectives(RunState):
    """Matches the ranks call by call, until they enter different ones: later calls have no match.

    met: the match of the last event with calls of other ranks.
    """

    def __init__(self) -> None:
        self.met: Sequence[Meeting] = ()
        self._is_over = False
        self._inside: set[_Place] = set()  # calls that were entered and have not come back
        self._numbers: Counter[_Place] = Counter()
        self._turns: dict[int, list[str]] = defaultdict(list)  # training processes of a rank
        self._waiting: dict[_Place, dict[int, CollectiveEvent]] = {}

    def observe(self, event: Event) -> None:
        self.met = ()
        if self._is_over:
            return
        if isinstance(event, CollectiveEvent):
            self.met = tuple(self._back(event))
        elif isinstance(event, StepEvent):
            self._is_over = not event.recorded  # unrecorded calls were made
        elif isinstance(event, MarkEvent):
            if event.text == Marks.COLLECTIVE_ENTERED:
                call = entered(event)
                self._inside.add(_own(call))
                self.met = tuple(self._enter(call))
            self._is_over |= event.text == Marks.DROPPED

    def _back(self, event: CollectiveEvent) -> Iterator[Meeting]:
        if _own(event) in self._inside:
            self._inside.discard(_own(event))
        else:
            yield from self._enter(event)
        if event.op in PAIRWISE and event.peer is not None:
            ends = (event.rank, event.peer) if event.op == "send" else (event.peer, event.rank)
            number = self._count(("pair", event.op, self._turn(event), event.group, *ends))
            place: _Place = ("pair", self._turn(event), event.group, *ends, number)
            yield from self._meet(place, event, is_back=True)
        elif event.op in _SAME_AFTER:
            place = ("back", self._turn(event), event.group, event.number)
            yield from self._meet(place, event, is_back=True)

    def _enter(self, event: CollectiveEvent) -> Iterator[Meeting]:
        if event.op in PAIRWISE | _ASYNCHRONOUS:
            return
        turn = self._turn(event)
        number = self._count(("all", event.rank, turn, event.group))
        yield from self._meet(("all", turn, event.group, number), event, is_back=False)

    def _turn(self, event: CollectiveEvent) -> int:
        pid, turns = event.stream.partition("-")[0], self._turns[event.rank]
        if pid not in turns:
            turns.append(pid)
        return turns.index(pid)

    def _count(self, what: _Place) -> int:
        self._numbers[what] += 1
        return self._numbers[what]

    def _meet(self, place: _Place, event: CollectiveEvent, *, is_back: bool) -> Iterator[Meeting]:
        calls = self._waiting.get(place)
        if calls is None or event.rank in calls:  # a rank restarts its count
            if len(self._waiting) >= _MOST_WAITING:
                del self._waiting[next(iter(self._waiting))]
            self._waiting[place] = {event.rank: event}
            return
        calls[event.rank] = event
        meeting = Meeting(calls, is_back)
        self._is_over |= not meeting.is_same
        yield meeting


def entered(mark: MarkEvent) -> CollectiveEvent:
    """The entered call of a mark; its result is not known yet."""
    return CollectiveEvent(*mark.header, **mark.data)


def _own(event: CollectiveEvent) -> _Place:
    return event.rank, event.stream, event.group, event.number
