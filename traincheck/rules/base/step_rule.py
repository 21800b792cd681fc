"""A monitor that judges whole steps of one process, and what it proves."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from traincheck.facts.provider import Fact, Facts
from traincheck.facts.step_facts import StepFacts
from traincheck.facts.training_state import TrainingState
from traincheck.rules.base.rule import BuiltInRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import Event, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation


class StepRule(BuiltInRule):
    """A monitor that judges whole steps by the state of training."""

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
        """Violations that a step proves; also told of steps that were not recorded."""


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
    """A violation at the step of ``facts``, or at an earlier one that it proves.

    what: code of the rule, the symptom, and perhaps the optimizer of several.
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
