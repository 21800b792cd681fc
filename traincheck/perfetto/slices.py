"""Calls of one thread, in the order in which they begin, each inside the one that made it.

A trace has a call when it ends, so a parent follows its children. Calls wait here until the one
that encloses them has ended. The number of those that wait is bounded. Beyond it, the first ones
are released; a call that encloses them keeps its earlier begin, although it is written after them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Generic, TypeVar

_T = TypeVar("_T")
MOST_WAITING = 8_000


@dataclass(slots=True)
class Slice(Generic[_T]):
    """A call with those inside it. Times are in nanoseconds.

    Attributes:
        begin, end: of the call.
        what: the caller's own.
        inside: calls within it, by time.
        size: number of calls, with those inside.
        is_late: calls inside it were released before it.
    """

    begin: int
    end: int
    what: _T
    inside: list[Slice[_T]] = field(default_factory=list)
    size: int = 1
    is_late: bool = False


@dataclass(frozen=True, slots=True)
class Edge(Generic[_T]):
    """The begin of a call, or its end.

    Attributes:
        time_ns: not less than that of the edge before it, but for the begin of a late call.
        what: of the call that begins; None at an end.
    """

    time_ns: int
    what: _T | None


class Nesting(Generic[_T]):
    """Takes the calls of one thread as they end, and gives their edges in order.

    There is an end for every begin, and calls are inside their parents: times that contradict that
    are moved to the nearest that do not.

    Args:
        most: number of calls that may wait.
    """

    def __init__(self, most: int = MOST_WAITING) -> None:
        self._most = most
        self._waiting: list[Slice[_T]] = []  # whose parents have not ended, by time
        self._size = 0
        self._released: list[int] = []  # begins of released calls whose parents have not ended
        self._last_ns = 0

    def add(self, call: Slice[_T], *, is_outermost: bool) -> Iterator[Edge[_T]]:
        """Take a call that has ended, after all calls inside it.

        Args:
            call: without what is inside.
            is_outermost: no other call encloses it.
        """
        while self._waiting and self._waiting[-1].begin >= call.begin:
            call.inside.append(self._waiting.pop())
        call.inside.reverse()
        call.size += sum(child.size for child in call.inside)
        call.is_late = any(child.is_late for child in call.inside)
        while self._released and self._released[-1] >= call.begin:
            self._released.pop()
            call.is_late = True
        self._waiting.append(call)
        self._size += 1
        if is_outermost:
            yield from self.rest()
        elif self._size > self._most:
            yield from self._release_half()

    def rest(self) -> Iterator[Edge[_T]]:
        """The edges of all calls that wait: nothing encloses them."""
        waiting, self._waiting, self._size = self._waiting, [], 0
        self._released.clear()
        yield from self._edges(waiting)

    def _release_half(self) -> Iterator[Edge[_T]]:
        count = released = 0
        while count < len(self._waiting) and released < self._size // 2:
            released += self._waiting[count].size
            count += 1
        first, self._waiting = self._waiting[:count], self._waiting[count:]
        self._size -= released
        self._released += [call.begin for call in first]
        yield from self._edges(first)

    def _edges(self, calls: list[Slice[_T]]) -> Iterator[Edge[_T]]:
        """Depth first without recursion: programs may nest deeper than Python does."""
        stack: list[tuple[float, Iterator[Slice[_T]]]] = [(inf, iter(calls))]
        while stack:
            limit, found = stack[-1]
            call = next(found, None)
            if call is not None:
                begin = int(min(max(call.begin, self._last_ns), limit))
                if call.is_late:
                    begin = call.begin
                else:
                    self._last_ns = begin
                yield Edge(begin, call.what)
                stack.append((max(self._last_ns, min(call.end, limit)), iter(call.inside)))
                continue
            stack.pop()
            if stack:
                self._last_ns = int(limit)
                yield Edge(self._last_ns, None)
