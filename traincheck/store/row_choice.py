"""The rows of a table that a caller chose: by step, name, role and rank.

The same choice is applied to events, while a trace is read, and to record batches of an export.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import reduce
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from traincheck.errors import UsageError, suggested
from traincheck.schema.events import EVENT_TYPES, Event
from traincheck.schema.layout import LARGEST_WHOLE

Steps: TypeAlias = range | slice | int
Names: TypeAlias = str | Sequence[str]

# The fields that the argument ``name`` is compared with, by kind of event
NAMED = {
    "call": ("api", "family", "module"),
    "state": ("name",),
    "batch": ("loader",),
    "optimizer": ("id", "cls"),
    "rng": ("source",),
    "collective": ("op", "variable"),
    "checkpoint": ("op", "target"),
    "mark": ("text",),
    "warning": ("category",),
}
ROLES = ("parameter", "gradient", "buffer", "optimizer_state")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChoice:
    """A choice of rows. Make it with `chosen`, which checks its arguments.

    Attributes:
        kind: of the events.
        steps: the rows of these; None for all, also those without a step.
        names: patterns, of which one matches a field of `NAMED`; empty for all.
        roles: of variables; empty for all.
        ranks: empty for all.
    """

    kind: str
    steps: range | None = None
    names: tuple[str, ...] = ()
    roles: frozenset[str] = frozenset()
    ranks: frozenset[int] = frozenset()

    def takes(self, event: Event) -> bool:
        """Whether an event of this kind is chosen."""
        if self.steps is not None and (event.step is None or event.step not in self.steps):
            return False
        if self.ranks and event.rank not in self.ranks:
            return False
        if self.roles and getattr(event, "role", None) not in self.roles:
            return False
        return not self.names or any(
            self._matches(getattr(event, field)) for field in NAMED[self.kind]
        )

    def may_take(self, first: int | None, last: int | None) -> bool:
        """Whether rows of these steps may be chosen. None if the steps are not known."""
        if self.steps is None or first is None or last is None:
            return True
        low, high = _bounds(self.steps)
        return low <= last and first <= high

    def rows_of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The chosen rows of a record batch of this kind."""
        kept = batch
        if self.steps is not None:
            kept = kept.filter(_in_range(pc, kept["step"], self.steps))
        if self.ranks:
            kept = kept.filter(pc.is_in(kept["rank"], pa.array(sorted(self.ranks), pa.int64())))
        if self.roles:
            kept = kept.filter(pc.is_in(kept["role"], pa.array(sorted(self.roles))))
        if self.names:
            masks = []
            for column in (kept[field] for field in NAMED[self.kind]):
                # Each distinct text is matched once.
                found = [text for text in column.unique().to_pylist() if self._matches(text)]
                masks.append(pc.is_in(column, pa.array(found, pa.string()), skip_nulls=True))
            kept = kept.filter(reduce(pc.or_, masks))
        return kept

    def _matches(self, text: str | None) -> bool:
        return text is not None and any(fnmatchcase(text, pattern) for pattern in self.names)


def chosen(
    kind: str,
    *,
    steps: Steps | None = None,
    name: Names | None = None,
    role: Names | None = None,
    rank: int | Sequence[int] | None = None,
) -> RowChoice:
    """The choice that these arguments of a table make.

    Raises:
        UsageError: an argument is not usable.
    """
    if kind not in {event_type.kind for event_type in EVENT_TYPES}:
        kinds = [event_type.kind for event_type in EVENT_TYPES]
        raise UsageError(f"no kind of event is called {kind!r}", fix=f"one of {', '.join(kinds)}")
    names, roles = texts_of("name", name), texts_of("role", role)
    if names and kind not in NAMED:
        raise UsageError(f"events of kind {kind!r} have no name", fix="leave out name=")
    if roles and kind != "state":
        raise UsageError(f"events of kind {kind!r} have no role", fix="leave out role=")
    for text in set(roles).difference(ROLES):
        raise UsageError(
            f"no role is called {text!r}",
            fix=f"{suggested(text, ROLES)}There are {', '.join(ROLES)}",
        )
    taken = _range(steps)
    ranks = frozenset(() if rank is None else (rank,) if isinstance(rank, int) else rank)
    if rank is not None and not (ranks and all(_is_whole(one) and one >= 0 for one in ranks)):
        raise UsageError(f"rank is {rank!r}", fix="give rank as a number from 0, or several")
    return RowChoice(kind=kind, steps=taken, names=names, roles=frozenset(roles), ranks=ranks)


def texts_of(argument: str, value: Names | None) -> tuple[str, ...]:
    """The texts that an argument names; none for None.

    Raises:
        UsageError: it is not usable.
    """
    if value is None:
        return ()
    found = (value,) if isinstance(value, str) else tuple(value)
    if not found or not all(isinstance(text, str) for text in found):
        raise UsageError(f"{argument} is {value!r}", fix=f"give {argument} as a text, or several")
    return found


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _range(steps: Steps | None) -> range | None:
    if steps is None or isinstance(steps, range):
        return steps
    if isinstance(steps, int) and not isinstance(steps, bool):
        return range(steps, steps + 1)
    if isinstance(steps, slice):
        parts = (steps.start, steps.stop, steps.step)
        if all(part is None or (_is_whole(part) and part >= 0) for part in parts) and parts[2] != 0:
            # Not slice.indices: no step is the last one
            stop = LARGEST_WHOLE if steps.stop is None else steps.stop
            return range(steps.start or 0, stop, steps.step or 1)
    raise UsageError(
        f"steps is {steps!r}, which is neither a range, a slice from 0 nor a number",
        fix="use steps=range(10, 20) or slice(10, 20) for steps 10 to 19, or steps=3",
    )


def _in_range(pc: Any, column: Any, steps: range) -> Any:
    """Whether each cell is one of ``steps``; null where there is no step."""
    low, high = _bounds(steps)
    inside = pc.and_(pc.greater_equal(column, low), pc.less_equal(column, high))
    width = abs(steps.step)
    if width == 1:
        return inside
    offset = pc.subtract(column, low)
    rest = pc.subtract(offset, pc.multiply(pc.divide(offset, width), width))
    return pc.and_(inside, pc.equal(rest, 0))


def _bounds(steps: range) -> tuple[int, int]:
    """The lowest and the highest number; of an empty range, none lies between them."""
    return (min(steps[0], steps[-1]), max(steps[0], steps[-1])) if steps else (1, 0)
