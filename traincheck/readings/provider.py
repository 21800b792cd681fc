"""Facts, and their distribution to monitors.

A fact is state that follows from events. It gives no verdict. A monitor names the facts that it
uses in a class attribute; each of them is built once for a process, or for a run, and is fed every
event before the monitors that use it (check/monitors/subscriptions.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar, Protocol, TypeVar

from traincheck.schema.claims import Needs
from traincheck.schema.events import Event
from traincheck.schema.protocols import Monitor


class Fact(ABC):
    """State that follows from the events of one process, or of all ranks. Must be picklable."""

    @abstractmethod
    def observe(self, event: Event) -> None:
        """Enter ``event``."""

    @property
    def incomplete(self) -> str | None:
        """Why a part of the run could not be followed, for a note in the report; else None."""
        return None


F = TypeVar("F", bound=Fact)


class Facts:
    """The facts of one process or of one run, one of each kind."""

    def __init__(self) -> None:
        self._by_kind: dict[type[Fact], Fact] = {}

    def of(self, kind: type[F]) -> F:
        """The fact of this kind, created on first use."""
        fact = self._by_kind.get(kind)
        if not isinstance(fact, kind):
            fact = self._by_kind[kind] = kind()
        return fact

    def __iter__(self) -> Iterator[Fact]:
        """All facts that were created."""
        return iter(self._by_kind.values())


class FactMonitor(Monitor, Protocol):
    """A monitor that uses facts.

    Attributes:
        uses: the kinds of facts that it uses. They get every event that its check needs.
        observes: the events that the monitor itself gets.
    """

    uses: ClassVar[Sequence[type[Fact]]]
    observes: ClassVar[Needs]

    def bind(self, facts: Facts) -> None:
        """Store the facts that it uses. Called once, before the first event."""
        ...


def uses_of(monitor: Monitor) -> Sequence[type[Fact]]:
    """The kinds of facts that a monitor uses; most use none."""
    found: Sequence[type[Fact]] = getattr(monitor, "uses", ())
    return found
