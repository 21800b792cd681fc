"""The values of tensors that several ranks hold, compared at the ends of the same steps.

A sketch has sixteen signed sums; the norm of a difference of two sketches is about that of the
tensors. So a distance is known although each rank records its own values alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import dist, hypot

from traincheck.readings.distributed.ranks import is_local_method
from traincheck.readings.provider import RunState
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event, MarkEvent, OptimizerEvent, StepEvent
from traincheck.schema.marks import Marks
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.processes import (
    Layout,
    LocalValues,
    ParameterPlacement,
    ReductionGroup,
    ReplicaValues,
)
from traincheck.schema.observations.reading import observed
from traincheck.schema.torch_api import DDP_HOOK, Families

REPLICA_VALUES = needs_of(ParameterPlacement, ReplicaValues) | Needs(
    calls=frozenset({DDP_HOOK, Families.BACKWARD}), kinds=frozenset({"step", "optimizer"})
)
_MOST_WAITING = 64  # comparisons for which a rank has not ended its step

Key = tuple[str, str]  # role and name


@dataclass(frozen=True, slots=True)
class Distance:
    """How far two ranks are apart in a tensor.

    Attributes:
        event: the values of the second rank.
        backward: its last backward pass.
        role: ``parameter`` or ``gradient``.
        layout: None for a parameter whose gradient is reduced over each rank alone.
        ranks: the two ranks.
        apart: norm of the difference.
        norm: of the values of the first rank.
        moved: norm of how the first rank has changed them since the last comparison; None in the
            first.
        began_apart: `apart` over `norm` in the first comparison.
    """

    event: MarkEvent
    backward: CallEvent | None
    step: int
    name: str
    role: str
    dtype: str
    layout: Layout | None
    ranks: tuple[int, int]
    apart: float
    norm: float
    moved: float | None
    began_apart: float


@dataclass(slots=True)
class _Rank:
    placement: ParameterPlacement | None = None
    alone: frozenset[str] = frozenset()

    def replicas_of(self, name: str) -> tuple[Layout | None, tuple[int, ...]]:
        """The layout of a parameter, and the ranks that should hold the same values."""
        placed = self.placement
        if placed is None:
            return None, ()
        index = placed.parameters.get(name)
        if index is not None and len(placed.layouts[index].replicas) > 1:
            return placed.layouts[index], placed.layouts[index].replicas
        return None, tuple(range(placed.world)) if name in self.alone else ()


@dataclass(slots=True)
class _Waiting:
    event: MarkEvent
    values: Mapping[Key, LocalValues]


class Replicas(RunState):
    """Compares what ranks hold when all of them have ended a step.

    Attributes:
        ready: the distances of the comparison that has just become complete.
        is_local: whether ranks may differ for some steps, as in local SGD.
    """

    def __init__(self) -> None:
        self.ready: Sequence[Distance] = ()
        self.is_local = False
        self._world = 1
        self._ranks: dict[int, _Rank] = defaultdict(_Rank)
        self._waiting: dict[int, dict[int, _Waiting]] = defaultdict(dict)  # by step
        self._last: dict[tuple[int, Key], LocalValues] = {}  # of the first rank of a group
        self._began: dict[tuple[int, Key], float] = {}
        self._backward: dict[int, CallEvent] = {}  # the last one of each rank

    @property
    def groups(self) -> Mapping[int, Sequence[ReductionGroup]]:
        """The wrappers of each rank that reduce gradients."""
        return {n: r.placement.groups for n, r in self._ranks.items() if r.placement is not None}

    @property
    def others(self) -> int:
        """The most trained parameters of a rank whose gradients other ranks take part in."""
        return max((r.placement.others for r in self._ranks.values() if r.placement), default=0)

    def observe(self, event: Event) -> None:
        self.ready = ()
        if isinstance(event, MarkEvent):
            size = event.world_size
            if event.text in (Marks.PROCESS, Marks.PROCESS_GROUP) and size is not None:
                self._world = max(self._world, size)
            found = observed(event, ParameterPlacement, ReplicaValues)
            if isinstance(found, ParameterPlacement):
                self._ranks[event.rank] = _Rank(found, frozenset(found.alone))
                self._world = max(self._world, found.world)
            elif isinstance(found, ReplicaValues) and event.step is not None:
                values = {(one.role, one.name): one for one in found.values}
                self._waiting[event.step][event.rank] = _Waiting(event, values)
                if len(self._waiting) > _MOST_WAITING:
                    del self._waiting[min(self._waiting)]
        elif isinstance(event, OptimizerEvent):
            self.is_local |= is_local_method(event.cls)
        elif isinstance(event, CallEvent):
            if event.api == DDP_HOOK:
                self.is_local |= is_local_method(str(event.args.get("hook")))
            else:
                self._backward[event.rank] = event
        elif isinstance(event, StepEvent) and event.step is not None:
            waiting = self._waiting.get(event.step)
            if waiting is not None and len(waiting) == self._world:
                del self._waiting[event.step]
                self.ready = tuple(self._distances(event.step, waiting))

    def _distances(self, step: int, waiting: Mapping[int, _Waiting]) -> Iterator[Distance]:
        for number, mine in sorted(waiting.items()):
            for key, own in mine.values.items():
                layout, replicas = self._ranks[number].replicas_of(own.name)
                others = [waiting[n] for n in replicas if n in waiting and n > number]
                if not others or number != min(replicas):
                    continue
                yield from self._distance(step, (number, own, layout), others)
                self._last[number, key] = own

    def _distance(
        self, step: int, mine: tuple[int, LocalValues, Layout | None], others: Sequence[_Waiting]
    ) -> Iterator[Distance]:
        """The rank that is farthest from the first one."""
        number, own, layout = mine
        key = own.role, own.name
        found = [
            (dist(own.sums, theirs.sums), one.event)
            for one in others
            if (theirs := one.values.get(key)) is not None and theirs.dtype == own.dtype
        ]
        if not found:
            return
        apart, event = max(found, key=lambda pair: pair[0])
        last = self._last.get((number, key))
        began = self._began.setdefault((number, key), apart / own.norm if own.norm else 0.0)
        yield Distance(
            event=event,
            backward=self._backward.get(event.rank),
            step=step,
            name=own.name,
            role=own.role,
            dtype=own.dtype,
            layout=layout,
            ranks=(number, event.rank),
            apart=apart,
            norm=own.norm,
            moved=None if last is None else dist(own.sums, last.sums),
            began_apart=began,
        )


def joint(distances: Sequence[Distance]) -> float:
    """The distance of all tensors together, over their norm."""
    norm = hypot(*(one.norm for one in distances))
    return hypot(*(one.apart for one in distances)) / norm if norm else 0.0
