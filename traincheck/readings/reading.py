"""The record of a reading: what was read of whom, at which event. Readers make them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from traincheck.schema.events import Event
from traincheck.schema.findings import Subject

# Examples that a comparison of many numbers, or with another run, is worth: a program does not pass
# it by chance.
MANY = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One value that events show.

    Attributes:
        what: the name of the quantity, as in its table.
        of: its owner, such as a model or an optimizer; None if the run has one of it.
        under: what it depends on; only readings with the same are compared.
        value: a word, a number, or numbers.
        seen: what was observed, as a clause.
        at: what a finding points to.
        event: that shows it.
        weight: number of examples that it is worth.
    """

    what: str
    of: str | None = None
    under: str | None = None
    value: Any
    seen: str
    at: Subject
    event: Event
    weight: int = 1


class Reader(Protocol):
    """Follows the events of one process."""

    def observe(self, event: Event) -> Iterable[Reading]: ...

    def finish(self) -> Iterable[Reading]:
        """The readings that need the whole run."""
        ...


class EventReader:
    """A reader without state.

    Args:
        read: what one event shows.
    """

    def __init__(self, read: Callable[[Event], Iterable[Reading]]) -> None:
        self._read = read

    def observe(self, event: Event) -> Iterable[Reading]:
        return self._read(event)

    def finish(self) -> Iterable[Reading]:
        return ()
