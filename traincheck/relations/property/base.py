"""A property of training that events show, and how it is worded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from traincheck.schema.claims import Needs
from traincheck.schema.events import Event
from traincheck.schema.findings import Subject, Symptom

# Examples that a comparison of many numbers is worth: a program does not pass it by chance.
MANY = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The content of one event about a property.

    Attributes:
        of: what it is about, such as the name of a model: the subject of a claim.
        value: one word; a claim says that it is always the same.
        seen: what was observed, as a clause.
        at: what a finding points to.
        event: that shows it.
        weight: number of examples that it is worth.
    """

    of: str
    value: str
    seen: str
    at: Subject
    event: Event
    weight: int = 1


class Reader(Protocol):
    """Follows the events of one process."""

    def observe(self, event: Event) -> Iterable[Reading]: ...

    def finish(self) -> Iterable[Reading]: ...


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Property:
    """One property.

    Attributes:
        name: in claims.
        needs: what a trace must hold to read it.
        reader: makes one for a process.
        claims: value -> what a claim of it says, with ``{of}``. Other values are never claimed.
        headline, cause, fix, symptom: of a finding.
    """

    name: str
    needs: Needs
    reader: Callable[[], Reader]
    claims: Mapping[str, str]
    headline: str
    cause: str
    fix: str
    symptom: Symptom = Symptom.WRONG_VALUE

    def says(self, of: str, value: str) -> str:
        """The clause of a claim."""
        return self.claims[value].format(of=of)
