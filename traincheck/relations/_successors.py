"""Optimizers that are made later than one, and step in its place. Judges nothing."""

from __future__ import annotations

from traincheck.relations._loop import Partners
from traincheck.schema.apis import Families
from traincheck.schema.events import CallEvent, OptimizerEvent

_MANY = 64  # optimizers: they are made in the loop


class Successors:
    """Follows which optimizers step, and which of them hold the same parameters."""

    def __init__(self) -> None:
        self._made: dict[str, OptimizerEvent] = {}  # in order
        self._partners = Partners()
        self._stepped: set[str | None] = set()  # since the last window
        self._ever: set[str | None] = set()

    def hold(self, event: OptimizerEvent) -> None:
        """Take note of what an optimizer holds."""
        self._made.setdefault(event.id, event)
        self._partners.hold(event)

    def call(self, event: CallEvent) -> None:
        """Take note of a step of an optimizer."""
        if event.family == Families.OPTIMIZER_STEP and event.exception is None:
            self._stepped.add(event.owner)
            self._ever.add(event.owner)

    def turn(self) -> None:
        """A window is over."""
        self._stepped.clear()

    def of(self, owner: str | None) -> OptimizerEvent | None:
        """What stepped in the place of this one: it is of its class, and was made after it."""
        made = list(self._made)
        if owner not in self._made:
            return None
        for name in made[made.index(owner) + 1 :]:
            event = self._made[name]
            if name in self._stepped and self._is_like(owner, name):
                return event
        return None

    def stands_for(self, owner: str) -> str | None:
        """The one that an optimizer has replaced before it stepped once; None if there is none.

        A program that makes its optimizer once more while it is set up loses nothing.
        """
        if owner not in self._made or len(self._made) > _MANY:
            return None
        made = list(self._made)
        before = (one for one in made[: made.index(owner)] if one not in self._ever)
        return next((one for one in before if self._is_like(one, owner)), None)

    def _is_like(self, one: str, other: str) -> bool:
        same_class = self._made[one].cls == self._made[other].cls
        return same_class and self._partners.share(one, other)


def label(event: OptimizerEvent) -> str:
    """``opt1 (SGD, made at train.py:40)``."""
    where = f", made at {event.where.rpartition('/')[2]}" if event.where else ""
    return f"{event.id} ({event.cls.rpartition('.')[2]}{where})"
