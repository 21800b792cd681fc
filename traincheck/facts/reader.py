"""The base of readers of facts. They follow one process and judge nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar

from traincheck.facts.kinds import Kind
from traincheck.readings.provider import RunState, RunStates
from traincheck.schema.claims import Needs
from traincheck.schema.events import Event
from traincheck.schema.facts import Fact


class FactReader(ABC):
    """Follows the events of one process, and tells at the end what was seen.

    Attributes:
        kinds: the kinds of facts that it tells.
        needs: what a trace must hold for them.
        observes: the events that it gets itself.
        uses: the run states that it uses; they see an event before it.
    """

    kinds: ClassVar[Sequence[Kind]]
    needs: ClassVar[Needs]
    observes: ClassVar[Needs]
    uses: ClassVar[Sequence[type[RunState]]] = ()

    def bind(self, run_states: RunStates) -> None:  # noqa: B027  # most use none
        """Store the run states that it uses. Called once, before the first event."""

    @abstractmethod
    def observe(self, event: Event) -> None:
        """Enter an event."""

    @abstractmethod
    def facts(self) -> Iterable[Fact]:
        """The facts of the process so far."""
