"""The k-th call that ranks make together, and what two ranks know of it. Judges nothing.

Goes by the order of calls alone, not by steps: a run that hangs in a call ends no step.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from traincheck.schema.apis import Marks
from traincheck.schema.events import CollectiveEvent, Event, MarkEvent, StepEvent

_PAIRWISE = frozenset({"send", "recv"})
_ASYNCHRONOUS = frozenset({"isend", "irecv"})
_ANY_SHAPE = frozenset({"barrier", "all_to_all", "all_gather_object", "broadcast_object_list"})
_SAME_AFTER = frozenset({"all_reduce", "broadcast", "all_gather_into_tensor"})
_MOST_WAITING = 4096

_Place = tuple[Any, ...]


class Pair(NamedTuple):
    """One call, as two ranks have made it. is_back: both have what it gave them."""

    first: CollectiveEvent
    other: CollectiveEvent
    is_back: bool

    @property
    def shapes(self) -> list[str] | None:
        """What each of them gave; None where shapes may differ."""
        first, other = self.first, self.other
        is_free = first.uneven or other.uneven or first.op in _ANY_SHAPE
        if self.is_back or is_free or first.shape is None or other.shape is None:
            return None
        return [f"{event.dtype}{list(event.shape or ())}" for event in (first, other)]

    @property
    def contents(self) -> list[str] | None:
        """What each of them holds when it is over; None where that may differ, or is not known.

        Of what is sent, before it is: the sender may write over it.
        """
        first, other = self.first, self.other
        if not self.is_back or first.dtype != other.dtype:
            return None
        if list(first.shape or ()) != list(other.shape or ()):
            return None
        found = [e.before if e.op == "send" else e.after for e in (first, other)]
        return None if None in found else [str(digest) for digest in found]


class Exchanges:
    """Compares ranks call by call, until they enter different ones: what follows is no pair."""

    def __init__(self) -> None:
        self._is_over = False
        self._inside: set[_Place] = set()  # calls that were entered and have not come back
        self._numbers: Counter[_Place] = Counter()
        self._turns: dict[int, list[str]] = defaultdict(list)  # training processes of a rank
        self._waiting: dict[_Place, CollectiveEvent] = {}

    def observe(self, event: Event) -> Iterator[Pair]:
        """The pairs that ``event`` makes with what another rank has done."""
        if self._is_over:
            return
        if isinstance(event, CollectiveEvent):
            yield from self._back(event)
        elif isinstance(event, StepEvent):
            self._is_over = not event.recorded  # calls were made that nobody saw
        elif isinstance(event, MarkEvent):
            if event.text == Marks.COLLECTIVE_ENTERED:
                entered = CollectiveEvent(*event.header, **event.data)
                self._inside.add(_own(entered))
                yield from self._enter(entered)
            self._is_over |= event.text == Marks.DROPPED

    def _back(self, event: CollectiveEvent) -> Iterator[Pair]:
        if _own(event) in self._inside:
            self._inside.discard(_own(event))
        else:
            yield from self._enter(event)
        if event.op in _PAIRWISE and event.peer is not None:
            ends = (event.rank, event.peer) if event.op == "send" else (event.peer, event.rank)
            number = self._count(("pair", event.op, self._turn(event), event.group, *ends))
            place: _Place = ("pair", self._turn(event), event.group, *ends, number)
            yield from self._meet(place, event, is_back=True)
        elif event.op in _SAME_AFTER:
            place = ("back", self._turn(event), event.group, event.number)
            yield from self._meet(place, event, is_back=True)

    def _enter(self, event: CollectiveEvent) -> Iterator[Pair]:
        if event.op in _PAIRWISE | _ASYNCHRONOUS:
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

    def _meet(self, place: _Place, event: CollectiveEvent, *, is_back: bool) -> Iterator[Pair]:
        first = self._waiting.get(place)
        if first is None or first.rank == event.rank:
            if len(self._waiting) >= _MOST_WAITING:
                del self._waiting[next(iter(self._waiting))]
            self._waiting[place] = event
        elif event.op not in _PAIRWISE and first.op != event.op:
            self._is_over = True
        else:
            yield Pair(first, event, is_back)


def _own(event: CollectiveEvent) -> _Place:
    return event.rank, event.stream, event.group, event.number
