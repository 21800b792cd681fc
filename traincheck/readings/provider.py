"""Run state, and its distribution to monitors.

Run state follows from events and gives no verdict. A monitor names what it uses in a class
attribute. Each kind is built once for a process, or for a run, and is fed every event before the
monitors that use it (check/monitors/subscriptions.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Protocol, TypeVar, cast

from traincheck.schema.claims import Needs
from traincheck.schema.events import KINDS, Event
from traincheck.schema.protocols import Monitor

EVERYTHING = Needs(kinds=frozenset(KINDS))


class RunState(ABC):
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


F = TypeVar("F", bound=RunState)
U = TypeVar("U")


class RunStates:
    """The run states of one process or of one run, one of each kind."""

    def __init__(self) -> None:
        self._by_kind: dict[type[RunState], RunState] = {}

    def of(self, kind: type[F]) -> F:
        """The run state of this kind, created on first use, behind those that it uses."""
        run_state = self._by_kind.get(kind)
        if not isinstance(run_state, kind):
            run_state = self.bind(kind())
            self._by_kind[kind] = run_state
        return run_state

    def bind(self, user: U) -> U:
        """Give a monitor, a proposer or a decider the run states that it uses. Returns the user."""
        if uses_of(user):
            cast(StateUser, user).bind(self)
        return user

    def reads(self) -> dict[type[RunState], Needs]:
        """The events that each of the run states reads that were created."""
        return {kind: EVERYTHING if kind.reads is None else kind.reads for kind in self._by_kind}

    def receivers(self) -> list[tuple[Needs, Callable[[Event], None]]]:
        """The observers of these run states, each with the events that it reads."""
        return [(needs, self._by_kind[kind].observe) for kind, needs in self.reads().items()]

    def __iter__(self) -> Iterator[RunState]:
        """All run states that were created."""
        return iter(self._by_kind.values())


class StateUser(Protocol):
    """A monitor, a proposer or a decider that uses run states.

    Attributes:
        uses: the kinds of run states that it uses.
    """

    uses: Sequence[type[RunState]]

    def bind(self, run_states: RunStates) -> None:
        """Store the run states that it uses. Called once, before the first event."""
        ...


class StateMonitor(StateUser, Monitor, Protocol):
    """A monitor that uses run states. They get every event that its check needs.

    Attributes:
        observes: the events that the monitor itself gets.
    """

    observes: ClassVar[Needs]


def uses_of(user: object) -> Sequence[type[RunState]]:
    """The kinds of run states that a monitor, a proposer or a decider uses; most use none."""
    found: Sequence[type[RunState]] = getattr(user, "uses", ())
    return found
