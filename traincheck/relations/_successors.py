"""Optimizers that are made later than one, and step in its place. Judges nothing."""

from __future__ import annotations

from traincheck.relations._loop import Partners
from traincheck.schema.apis import Families
from traincheck.schema.events import CallEvent, OptimizerEvent


class Successors:
    """Follows which optimizers step, and which of them hold the same parameters."""

    def __init__(self) -> None:
        self._made: dict[str, OptimizerEvent] = {}  # in order
        self._partners = Partners()
        self._stepped: set[str | None] = set()  # since the last window

    def hold(self, event: OptimizerEvent) -> None:
        """Take note of what an optimizer holds."""
        self._made.setdefault(event.id, event)
        self._partners.hold(event)

    def call(self, event: CallEvent) -> None:
        """Take note of a step of an optimizer."""
        if event.family == Families.OPTIMIZER_STEP and event.exception is None:
            self._stepped.add(event.owner)

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
            is_like = event.cls == self._made[owner].cls and self._partners.share(owner, name)
            if is_like and name in self._stepped:
                return event
        return None


def label(event: OptimizerEvent) -> str:
    """``opt1 (SGD, made at train.py:40)``."""
    where = f", made at {event.where.rpartition('/')[2]}" if event.where else ""
    return f"{event.id} ({event.cls.rpartition('.')[2]}{where})"
