"""Defaults of relations and proposers. A relation overrides those that do not fit it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from traincheck.readings.programs import ProgramName
from traincheck.readings.provider import EVERYTHING, RunState, RunStates
from traincheck.schema.claims import Context, Hypothesis, Needs
from traincheck.schema.events import Event
from traincheck.schema.findings import CheckInfo, Example, Subject, Symptom

NO_CONTEXT: Context = {}
SATISFIED = Example(holds=True, context=NO_CONTEXT)


def asked(*names: str) -> Needs:
    """Needs of these kinds of events; names with an ``@`` are states."""
    states = frozenset(name for name in names if "@" in name)
    return Needs(kinds=frozenset(names) - states, states=states)


class RelationBase:
    """Defaults of the members of `protocols.Relation`.

    Attributes:
        name: of the relation.
        severity: of all its invariants.
        scope: "process" for a proposer and a decider for each process, "run" for one of all ranks.
    """

    name: str
    severity: ClassVar[str] = "error"
    scope: str = "process"

    def antecedent(self, claim: Hypothesis) -> Mapping[str, Any]:
        """The subject of a claim: all its parameters."""
        return claim.params

    def supports(self, claim: Hypothesis, other: Hypothesis, terms: Collection[str]) -> bool:
        """Whether a run that supports ``claim`` supports ``other``: if it is implied."""
        return self.implies(claim, other)

    def min_programs(self, claim: Hypothesis) -> int | None:
        """One program is enough to claim it of every program."""
        return 1

    def chance(self, claim: Hypothesis, positive: int) -> float:
        """The chance of a coin toss for each example."""
        return float(0.5**positive)

    def implies(self, claim: Hypothesis, other: Hypothesis) -> bool:
        """Only itself."""
        return claim == other

    def words(self, claim: Hypothesis) -> Mapping[str, str]:
        """Severity and texts of a finding, where they are not those of the relation and symptom."""
        return {}

    def info(self, claim: Hypothesis, check_id: str, text: str) -> CheckInfo:
        """The text of the invariant is the title."""
        info = CheckInfo(
            check_id=check_id, kind="invariant", code=self.name, severity=self.severity, title=text
        )
        return replace(info, **self.words(claim))


class OfProgram:
    """A proposer or decider whose claims may be limited to one program.

    Attributes:
        uses: the run state that it reads.
    """

    uses: Sequence[type[RunState]] = (ProgramName,)

    def bind(self, run_states: RunStates) -> None:
        """Store what it uses. Called once, before the first event."""
        self._program = run_states.of(ProgramName)


class DeciderBase:
    """Defaults of the members of `protocols.Decider`."""

    def finish(self) -> Sequence[tuple[int, Example]]:
        """Nothing: what has not ended, or has not come yet, proves nothing."""
        return ()


class ProposerBase(OfProgram):
    """Defaults of the members of `protocols.Proposer`.

    Attributes:
        observes: the events that it gets: all.
    """

    observes: Needs = EVERYTHING

    def conditional_hypotheses(self) -> Iterable[Hypothesis]:
        """None."""
        return ()

    def observed_terms(self) -> Iterable[str]:
        """None."""
        return ()


def counterexample(
    event: Event,
    subject: Subject,
    expected: str,
    observed: str,
    symptom: Symptom,
    *,
    context: Context = NO_CONTEXT,
    evidence: tuple[Event, ...] = (),
    stage: str = "train",
) -> Example:
    """A negative example at the step and rank of ``event``.

    Args:
        event: where the claim broke.
        subject: what broke it.
        expected: what the claim asks for, as a clause.
        observed: what happened instead, as a clause.
        symptom: how the finding is worded and grouped.
        context: the features that preconditions are learned from.
        evidence: the events to show; ``event`` alone by default.
        stage: the stage to report.
    """
    return Example(
        holds=False,
        context=context,
        step=event.step,
        rank=event.rank,
        stage=stage,
        subject=subject,
        expected=expected,
        observed=observed,
        evidence=evidence or (event,),
        symptom=symptom,
    )
