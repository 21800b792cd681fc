"""Run state, its distribution to monitors, and the routes of events to whoever asked for them.

Run state follows from events and gives no verdict. A monitor names what it uses in a class
attribute. Each kind is built once for a process, or for a run, and is fed every event before the
monitors that use it (check/monitors/subscriptions.py). An event without
subscribers costs one dictionary lookup, whatever the number of monitors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar, Generic, Protocol, TypeVar, cast

from traincheck.schema.claims import Needs
from traincheck.schema.events import KINDS, Event
from traincheck.schema.facts import Fact
from traincheck.schema.marks import LIFECYCLE_CHANGES, ROLES
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


class Follower(Protocol):
    """A reader of one process that gives no verdict, but facts (facts/reader.py).

    Attributes:
        needs: the events that the trace must hold. They reach the run states that it uses.
        observes: the events that it gets itself.
        uses: the kinds of run states that it uses.
    """

    needs: ClassVar[Needs]
    observes: ClassVar[Needs]
    uses: ClassVar[Sequence[type[RunState]]]

    def bind(self, run_states: RunStates) -> None:
        """Store the run states that it uses. Called once, before the first event."""
        ...

    def observe(self, event: Event) -> None:
        """Enter an event."""
        ...

    def facts(self) -> Iterable[Fact]:
        """The facts of the process so far."""
        ...


def uses_of(user: object) -> Sequence[type[RunState]]:
    """The kinds of run states that a monitor, a proposer or a decider uses; most use none."""
    found: Sequence[type[RunState]] = getattr(user, "uses", ())
    return found


T = TypeVar("T")

NEW = "new"  # moment in Needs.states: only which variables exist, not how they change
ANY = "*"  # in Needs.calls: every call; in the role or moment of Needs.states: all of them


def roles_of(needs: Needs, besides: frozenset[str] = frozenset()) -> frozenset[str]:
    """The roles of variables whose state changes ``needs`` asks for, without ``besides``."""
    return frozenset(state.partition("@")[0] for state in needs.states - besides)


class Router(Generic[T]):
    """Finds the receivers of an event, in the order they were given.

    The engine's loop reads the tables directly, which saves a call for each event.

    Args:
        receivers: each with the events that it asks for.

    Attributes:
        calls: by API and family. `resolve` adds missing entries.
        lifecycle: by role, of changes that tell which variables exist.
        changes: by role, of all other changes. Receivers that only ask for ``new`` variables
            do not get them.
        kinds: by kind, of all other events.
    """

    def __init__(self, receivers: Sequence[tuple[Needs, T]]) -> None:
        self._receivers = tuple(receivers)
        # Filled on demand: a trace names the same few hundred APIs over and over.
        self.calls: dict[tuple[str, str | None], tuple[T, ...]] = {}
        self.lifecycle = {role: self._for_role(role) for role in ROLES}
        self.changes = {role: self._for_role(role, changes=True) for role in ROLES}
        self.kinds = {
            kind: tuple(receiver for needs, receiver in self._receivers if kind in needs.kinds)
            for kind in KINDS
        }

    def route(self, event: Event) -> tuple[T, ...]:
        """The receivers of ``event``."""
        if event.kind == "call":
            key = (event.api, event.family)
            return self.calls[key] if key in self.calls else self.resolve(key)
        if event.kind == "state":
            table = self.lifecycle if event.change in LIFECYCLE_CHANGES else self.changes
            return table.get(event.role, ())
        return self.kinds.get(event.kind, ())

    def resolve(self, key: tuple[str, str | None]) -> tuple[T, ...]:
        """The receivers of calls of an API and family."""
        api, family = key
        receivers = tuple(
            receiver
            for needs, receiver in self._receivers
            if "call" in needs.kinds
            or ANY in needs.calls
            or needs.delivers(api)
            or family in needs.calls
        )
        self.calls[key] = receivers
        return receivers

    def _for_role(self, role: str, *, changes: bool = False) -> tuple[T, ...]:
        besides = frozenset({f"{role}@{NEW}", f"{ANY}@{NEW}"} if changes else ())
        return tuple(
            receiver
            for needs, receiver in self._receivers
            if "state" in needs.kinds or not roles_of(needs, besides).isdisjoint((role, ANY))
        )
