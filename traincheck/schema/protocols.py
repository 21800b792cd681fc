"""The interfaces between folders. Structural: no class needs to inherit from these."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from traincheck.schema.claims import Hypothesis, Needs
from traincheck.schema.events import Event
from traincheck.schema.findings import CheckInfo, Example, Violation


class EventSource(Protocol):
    """A run, finished or live.

    Events of one process come in order of time; a rank's step is complete before its next begins.
    """

    def events(self) -> Iterator[Event]: ...


class Monitor(Protocol):
    """A running check of one process: a small state machine in bounded memory.

    Must be picklable. A monitor that uses facts names them in ``uses`` (facts/provider.py).
    """

    def observe(self, event: Event) -> Iterable[Violation]: ...

    def finish(self) -> Iterable[Violation]:
        """The run ended: awaited events will not come."""
        ...

    @property
    def triggered(self) -> int:
        """How often the antecedent of the check occurred; 0: the run shows nothing about it."""
        ...


class Rule(Protocol):
    """A built-in check.

    Its class docstring is its documentation (headings: What it checks, Why it matters, Fires on,
    Stays quiet on, Fix). A class attribute ``scope = "run"`` gives it one monitor for all ranks
    (check/seats.py); else each process has its own.
    """

    info: CheckInfo
    needs: Needs

    def monitor(self) -> Monitor: ...


class Decider(Protocol):
    """Decides instances of many hypotheses of one relation over one process' events.

    Yields ``(index of hypothesis, example)``.
    """

    def observe(self, event: Event) -> Iterable[tuple[int, Example]]: ...

    def finish(self) -> Iterable[tuple[int, Example]]: ...


class Proposer(Protocol):
    """Reads one process' events and then proposes the hypotheses that are worth testing.

    Optional members: a class attribute ``ignores`` (kinds of events that it does not use), a method
    ``echoes()`` (hypotheses that are tested only for comparison with other runs), and a method
    ``words()`` (conditions that occurred, for claims that need more than a call or a variable:
    `antecedent`).
    """

    def observe(self, event: Event) -> None: ...

    def hypotheses(self) -> Iterable[Hypothesis]: ...


class Relation(Protocol):
    """A kind of property that can be learned.

    Inference and checking both run its decider; no other code decides claims. A class attribute
    ``scope = "run"`` gives it one proposer and one decider for all ranks; else each process has its
    own.
    """

    name: str

    def proposer(self) -> Proposer: ...

    def decider(self, claims: Sequence[Hypothesis]) -> Decider: ...

    def needs(self, claim: Hypothesis) -> Needs: ...

    def text(self, claim: Hypothesis) -> str:
        """The claim as an English sentence, without its precondition."""
        ...

    def chance(self, claim: Hypothesis, positive: int) -> float:
        """Probability in [0, 1] of ``positive`` examples in a row by coincidence."""
        ...

    def implies(self, claim: Hypothesis, other: Hypothesis) -> bool:
        """Whether ``claim`` contains everything that ``other`` states."""
        ...

    def info(self, claim: Hypothesis, check_id: str, text: str) -> CheckInfo: ...


def is_for_run(check: Rule | Relation) -> bool:
    """Whether one monitor sees all ranks."""
    return getattr(check, "scope", "process") == "run"


def reach_of(relation: Relation, claim: Hypothesis) -> int | None:
    """Number of programs in which a claim must hold to apply to others; None: never."""
    if "program" in claim.params:
        return None
    reach = getattr(relation, "reach", None)
    if reach is None:
        return 1
    found: int | None = reach(claim)
    return found


JSON = Any
