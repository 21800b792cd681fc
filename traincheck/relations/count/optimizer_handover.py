"""Optimizers that replace another one, or that train another model."""

from __future__ import annotations

from traincheck.relations.example_cache import Examples
from traincheck.relations.landmark_orders import SharedOptimizers
from traincheck.schema.events import CallEvent, OptimizerEvent
from traincheck.schema.findings import Example
from traincheck.schema.places import short
from traincheck.schema.torch_api import Families

_MANY = 64  # optimizers: they are made in the loop
_KEPT = 8  # missing calls of one optimizer that are reported


class OptimizerHandover:
    """Follows which optimizers step, and which of them hold the same parameters."""

    def __init__(self) -> None:
        self._made: dict[str, OptimizerEvent] = {}  # in order
        self._partners = SharedOptimizers()
        self._stepped: set[str] = set()  # since the last window
        self._first: dict[str, int] = {}  # the window in which each stepped
        self._last: dict[str, int] = {}
        self._now = 0

    def hold(self, event: OptimizerEvent) -> None:
        """Enter the parameters of an optimizer."""
        self._made.setdefault(event.id, event)
        self._partners.hold(event)

    def call(self, event: CallEvent) -> None:
        """Enter a step of an optimizer."""
        owner = event.owner
        if event.family == Families.OPTIMIZER_STEP and event.exception is None and owner:
            self._stepped.add(owner)
            self._first.setdefault(owner, self._now)
            self._last[owner] = self._now

    def turn(self) -> None:
        """A window is over."""
        self._stepped.clear()
        self._now += 1

    def has_stepped(self, owner: str) -> bool:
        """Whether it ever has."""
        return owner in self._first

    @property
    def stepping(self) -> frozenset[str]:
        """The optimizers that step in this window."""
        return frozenset(self._stepped)

    def steps_now(self, owner: str) -> bool:
        """Whether it steps in this window."""
        return owner in self._stepped

    def begins(self, owner: str | None) -> bool:
        """Whether this window is the first in which it steps."""
        return owner is not None and self._first.get(owner) == self._now

    def trains_apart(self, owner: str) -> bool:
        """Whether only optimizers step in this window that never stepped beside this one.

        They train before it or, if it never steps again, after it: another model or another fold.
        """
        if not self._stepped or owner in self._stepped or self.of(owner) is not None:
            return False
        last = self._last.get(owner)
        return last is None or all(self._first[other] > last for other in self._stepped)

    def of(self, owner: str | None) -> OptimizerEvent | None:
        """The optimizer that stepped in place of this one: of its class, and created later."""
        made = list(self._made)
        if owner not in self._made:
            return None
        for name in made[made.index(owner) + 1 :]:
            event = self._made[name]
            if name in self._stepped and self._is_like(owner, name):
                return event
        return None

    def stands_for(self, owner: str) -> str | None:
        """The optimizer that ``owner`` replaced before that stepped once; None if there is none.

        A program may create its optimizer again during setup.
        """
        if owner not in self._made or len(self._made) > _MANY:
            return None
        made = list(self._made)
        before = (one for one in made[: made.index(owner)] if one not in self._first)
        return next((one for one in before if self._is_like(one, owner)), None)

    def _is_like(self, one: str, other: str) -> bool:
        same_class = self._made[one].cls == self._made[other].cls
        return same_class and self._partners.share(one, other)


class DeferredMisses:
    """Keeps missing calls of an optimizer while others train, until it is known if they count.

    They do not count before its first step or after its last. All of them count if it never steps.
    """

    def __init__(self, successors: OptimizerHandover) -> None:
        self._handover = successors
        self._kept: dict[int, tuple[str, list[Example]]] = {}

    def keep(self, index: int, owner: str, example: Example) -> None:
        """Enter a missing call of such a window."""
        _, kept = self._kept.setdefault(index, (owner, []))
        if len(kept) < _KEPT:
            kept.append(example)

    def turn(self) -> Examples:
        """End a window. Return missing calls between two steps of their optimizer."""
        found: list[tuple[int, Example]] = []
        for index, (owner, kept) in list(self._kept.items()):
            if self._handover.steps_now(owner):
                del self._kept[index]
                found += () if self._handover.begins(owner) else [(index, one) for one in kept]
        return found

    def finish(self) -> Examples:
        """Missing calls of optimizers that never stepped."""
        return [
            (index, one)
            for index, (owner, kept) in self._kept.items()
            if not self._handover.has_stepped(owner)
            for one in kept
        ]


def label(event: OptimizerEvent) -> str:
    """``opt1 (SGD, made at train.py:40)``."""
    where = f", made at {short(event.where)}" if event.where else ""
    return f"{event.id} ({event.cls.rpartition('.')[2]}{where})"
