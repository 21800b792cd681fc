"""Readings: the record, readers that make them, and rows of tables that say what is read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from traincheck.schema.claims import Needs
from traincheck.schema.events import Event
from traincheck.schema.findings import Subject, Symptom, Topic

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(ABC):
    """One quantity: how it is read, what is claimed of its readings, and the texts of findings.

    Attributes:
        name: in claims.
        needs: what a trace must hold to read it.
        reader: makes one for a process.
        headline, cause, fix, symptom, topic, severity: of a finding.
    """

    name: str
    needs: Needs
    reader: Callable[[], Reader]
    headline: str
    cause: str
    fix: str
    symptom: Symptom = Symptom.WRONG_VALUE
    topic: Topic | None = None
    severity: str = "warning"

    @abstractmethod
    def is_known(self, params: Mapping[str, Any]) -> bool:
        """Whether this version can decide a claim with these parameters."""

    @abstractmethod
    def allows(self, params: Mapping[str, Any], value: Any) -> bool:
        """Whether a reading agrees with a claim."""

    @abstractmethod
    def says(self, params: Mapping[str, Any]) -> str:
        """The clause of a claim."""

    def claimed(self, values: Iterable[Any]) -> Iterable[dict[str, Any]]:
        """Parameters of the claims that the readings of a run support. values: each once."""
        return ()

    def cause_of(self, params: Mapping[str, Any]) -> str:
        """The likely cause of a finding about this claim."""
        return self.cause

    def seen(self, params: Mapping[str, Any], reading: Reading) -> str:
        """The clause that tells what a reading shows that breaks a claim."""
        return reading.seen

    def at(self, reading: Reading) -> Subject:
        """The subject of a finding about a reading."""
        assert reading.at is not None
        return reading.at

    def stage(self, reading: Reading) -> str:
        """The stage of a finding."""
        return "train"
