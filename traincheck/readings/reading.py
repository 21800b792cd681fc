"""The record of a reading: what was read of whom, at which event. Readers make them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from traincheck.schema.events import Event
from traincheck.schema.findings import Subject

# Examples that a comparison of many numbers, or with another run, is worth: a program does not pass
# it by chance.
MANY = 10


class Key(NamedTuple):
    """A quantity, and whose it is. Readings of one key are compared."""

    what: str
    of: str = ""
    under: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """One value that events show.

    Attributes:
        what: the name of the quantity, as in its table.
        of: its owner, such as a model, an optimizer or an API; empty if the run has one of it.
        under: what it depends on, or the part of the owner that it is of.
        value: a word, a number, or numbers.
        event: that shows it.
        at: what a finding points to; None if the table of the quantity tells it.
        seen: what was observed, as a clause; empty if the table words it.
        weight: number of examples that it is worth.
    """

    what: str
    of: str
    under: str
    value: Any
    event: Event
    at: Subject | None = None
    seen: str = ""
    weight: int = 1

    @property
    def key(self) -> Key:
        return Key(self.what, self.of, self.under)


class Reader:
    """Follows the events of one process."""

    def observe(self, event: Event) -> Iterable[Reading]:
        """The readings that an event completes."""
        return ()

    def finish(self) -> Iterable[Reading]:
        """The readings that need the whole run."""
        return ()


class EventReader(Reader):
    """A reader without state.

    Args:
        read: what one event shows.
    """

    def __init__(self, read: Callable[[Event], Iterable[Reading]]) -> None:
        self._read = read

    def observe(self, event: Event) -> Iterable[Reading]:
        return self._read(event)
