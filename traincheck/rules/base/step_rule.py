"""Rules that judge complete steps, of one process or of all ranks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from traincheck.readings.distributed.ranks import RankSteps, RunStep
from traincheck.readings.provider import Fact, Facts
from traincheck.readings.step_facts import StepFacts
from traincheck.readings.training_state import TrainingState
from traincheck.rules.base.rule import BuiltInRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import Event, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation


class StepRule(BuiltInRule):
    """Judges complete steps of one process by the state of training."""

    uses: ClassVar[Sequence[type[Fact]]] = (TrainingState,)
    observes: ClassVar[Needs] = Needs(kinds=frozenset({"step"}))
    ledger: TrainingState

    def bind(self, facts: Facts) -> None:
        self.ledger = facts.of(TrainingState)

    def observe(self, event: Event) -> Sequence[Violation]:
        facts = self.ledger.ended if isinstance(event, StepEvent) else None
        return () if facts is None else self.judge(facts)

    @abstractmethod
    def judge(self, facts: StepFacts) -> Sequence[Violation]:
        """Return the violations that a step proves; called for unrecorded steps too."""


def proof(
    what: tuple[str, Symptom] | tuple[str, Symptom, str],
    facts: StepFacts,
    *,
    subject: Subject,
    message: str,
    expected: str,
    observed: str,
    evidence: Sequence[Event] = (),
    step: int | None = None,
) -> Violation:
    """A violation at the step of ``facts``, or at an earlier step.

    what: code of the rule, the symptom, and optionally the optimizer (if there are several).
    """
    return Violation(
        check_id=what[0],
        step=facts.event.step if step is None else step,
        rank=facts.event.rank,
        stage="eval" if evidence and evidence[-1].stage == "eval" else "train",
        subject=subject,
        symptom=what[1],
        message=message,
        expected=expected,
        observed=observed,
        evidence=tuple(evidence) or (facts.event,),
        optimizer="".join(what[2:]),
    )


class RankRule(BuiltInRule):
    """Judges complete steps of all ranks."""

    uses: ClassVar[Sequence[type[Fact]]] = (RankSteps,)
    observes: ClassVar[Needs] = Needs(kinds=frozenset({"step"}))

    def bind(self, facts: Facts) -> None:
        self._steps = facts.of(RankSteps)

    def observe(self, event: Event) -> Sequence[Violation]:
        if not isinstance(event, StepEvent):
            return ()
        return [found for step in self._steps.ready for found in self.judge(step)]

    @abstractmethod
    def judge(self, step: RunStep) -> Sequence[Violation]:
        """Return the violations that a step of all ranks proves."""
