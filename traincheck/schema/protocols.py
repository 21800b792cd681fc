"""The interfaces between packages. They are structural: nothing needs to inherit from them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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

    Must be picklable. A monitor that uses facts names them in ``uses`` (readings/provider.py).
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
    (check/monitors/subscriptions.py); else each process has its own.
    """

    info: CheckInfo
    needs: Needs

    def monitor(self) -> Monitor: ...


class Decider(Protocol):
    """Decides instances of many hypotheses of one relation over one process' events.

    An answer holds ``(index of hypothesis, example)``. Callers cache by identity: a tuple that was
    returned before must still be the same answer, and a context object that was used before must
    still hold the same features. So a decider may reuse these objects to save its callers work, and
    must not change one that it has returned.
    """

    def observe(self, event: Event) -> Iterable[tuple[int, Example]]: ...

    def finish(self) -> Iterable[tuple[int, Example]]: ...


class Proposer(Protocol):
    """Reads one process' events, and then proposes the hypotheses that are worth testing.

    `relations.base.ProposerBase` has defaults for all but ``observe`` and ``hypotheses``.

    Attributes:
        observes: the events that it gets, as of a check with these needs.
    """

    observes: Needs

    def observe(self, event: Event) -> None: ...

    def hypotheses(self) -> Iterable[Hypothesis]:
        """Hypotheses to be tested in all runs."""
        ...

    def conditional_hypotheses(self) -> Iterable[Hypothesis]:
        """Hypotheses to be tested only if another run proposes them."""
        ...

    def observed_terms(self) -> Iterable[str]:
        """Terms for conditions that occurred, which `Relation.antecedent` may ask for.

        They are needed where a claim requires more than a call or a variable.
        """
        ...


class Relation(Protocol):
    """A kind of property that can be learned.

    Inference and checking both run its decider; no other code decides claims.
    `relations.base.RelationBase` has defaults for the members that most relations share. Relations
    of other packages get them for those that they lack.

    Attributes:
        name: stands in invariant files.
        scope: "run" for one proposer and one decider for all ranks; "process" for one of each for
            every process.
    """

    name: str
    scope: str

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

    def antecedent(self, claim: Hypothesis) -> Mapping[str, Any]:
        """The subject of a claim, in the parameters that mean the same in every relation.

        A run in which the subject never occurred has no say about the claim. Default: the
        parameters of the claim.
        """
        ...

    def supports(self, claim: Hypothesis, other: Hypothesis, terms: Collection[str]) -> bool:
        """Whether a run in which ``claim`` holds supports ``other``, which it did not propose.

        Args:
            claim: without a counterexample in the run.
            other: proposed by another run.
            terms: calls and terms that occurred in the run.

        Default: `implies`.
        """
        ...

    def min_programs(self, claim: Hypothesis) -> int | None:
        """Number of programs in which a claim must hold before it is made of every program.

        None for never. Claims with a parameter ``program`` are made of that program only, whatever
        this returns. Default: 1.
        """
        ...

    def info(self, claim: Hypothesis, check_id: str, text: str) -> CheckInfo: ...


def is_for_run(check: Rule | Relation) -> bool:
    """Whether one monitor sees all ranks."""
    return getattr(check, "scope", "process") == "run"
