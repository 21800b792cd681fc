"""Facts, and their distribution to monitors.

A fact is state that follows from events. It gives no verdict. A monitor names the facts that it
uses in a class attribute; each of them is built once for a process, or for a run, and is fed every
event before the monitors that use it (check/monitors/subscriptions.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Protocol, TypeVar, cast

from traincheck.schema.claims import Needs
from traincheck.schema.events import KINDS, Event
from traincheck.schema.protocols import Monitor

EVERYTHING = Needs(kinds=frozenset(KINDS))


class Fact(ABC):
    """State that follows from the events of one process, or of all ranks. Must be picklable.

    Attributes:
        reads: the events that it enters; None for all that its users get.
    """

    reads: ClassVar[Needs | None] = None

    @abstractmethod
    def observe(self, event: Event) -> None:
        """Enter ``event``."""

    @property
    def incomplete(self) -> str | None:
        """Why a part of the run could not be followed, for a note in the report; else None."""
        return None


F = TypeVar("F", bound=Fact)
U = TypeVar("U")


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

    def bind(self, user: U) -> U:
        """Give a monitor, a proposer or a decider the facts that it uses. Returns the user."""
        if uses_of(user):
            cast(FactUser, user).bind(self)
        return user

    def reads(self) -> dict[type[Fact], Needs]:
        """The events that each of the facts reads that were created."""
        return {kind: EVERYTHING if kind.reads is None else kind.reads for kind in self._by_kind}

    def receivers(self) -> list[tuple[Needs, Callable[[Event], None]]]:
        """The observers of these facts, each with the events that it reads."""
        return [(needs, self._by_kind[kind].observe) for kind, needs in self.reads().items()]

    def __iter__(self) -> Iterator[Fact]:
        """All facts that were created."""
        return iter(self._by_kind.values())


class FactUser(Protocol):
    """A monitor, a proposer or a decider that uses facts.

    Attributes:
        uses: the kinds of facts that it uses.
    """

    uses: Sequence[type[Fact]]

    def bind(self, facts: Facts) -> None:
        """Store the facts that it uses. Called once, before the first event."""
        ...


class FactMonitor(FactUser, Monitor, Protocol):
    """A monitor that uses facts. They get every event that its check needs.

    Attributes:
        observes: the events that the monitor itself gets.
    """

    observes: ClassVar[Needs]


def uses_of(user: object) -> Sequence[type[Fact]]:
    """The kinds of facts that a monitor, a proposer or a decider uses; most use none."""
    found: Sequence[type[Fact]] = getattr(user, "uses", ())
    return found
