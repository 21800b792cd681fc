"""What most relations have in common. A relation overrides what it does differently."""

from __future__ import annotations

from typing import ClassVar

from traincheck.schema.claims import Context, Hypothesis
from traincheck.schema.events import Event
from traincheck.schema.findings import CheckInfo, Example, Subject, Symptom

NO_CONTEXT: Context = {}
SATISFIED = Example(holds=True, context=NO_CONTEXT)


class RelationBase:
    """Examples are coin tosses, claims imply only themselves, and all have one severity."""

    name: str
    severity: ClassVar[str] = "error"

    def chance(self, claim: Hypothesis, positive: int) -> float:
        return float(0.5**positive)

    def implies(self, claim: Hypothesis, other: Hypothesis) -> bool:
        """Only itself."""
        return claim == other

    def info(self, claim: Hypothesis, check_id: str, text: str) -> CheckInfo:
        return CheckInfo(
            check_id=check_id, kind="invariant", code=self.name, severity=self.severity, title=text
        )


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
