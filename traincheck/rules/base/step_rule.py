"""Rules that judge complete steps, of one process or of all ranks, and settings in force."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from traincheck.readings.distributed.ranks import RankSteps, RunStep
from traincheck.readings.optimizers import IN_FORCE, Course, HyperparametersInForce
from traincheck.readings.provider import RunState, RunStates
from traincheck.readings.step_facts import StepFacts
from traincheck.readings.training_state import TrainingState
from traincheck.rules.base.rule import BuiltInRule, Stated
from traincheck.schema.claims import Needs
from traincheck.schema.events import Event, StepEvent
from traincheck.schema.findings import Subject, Violation
from traincheck.schema.places import short
from traincheck.schema.torch_api import Families

if TYPE_CHECKING:
    from typing_extensions import Unpack


class StepRule(BuiltInRule):
    """Judges complete steps of one process by the state of training."""

    uses: ClassVar[Sequence[type[RunState]]] = (TrainingState,)
    observes = Needs(kinds=frozenset({"step"}))
    ledger: TrainingState

    def bind(self, run_states: RunStates) -> None:
        self.ledger = run_states.of(TrainingState)

    def observe(self, event: Event) -> Sequence[Violation]:
        facts = self.ledger.ended if isinstance(event, StepEvent) else None
        return () if facts is None else self.judge(facts)

    @abstractmethod
    def judge(self, facts: StepFacts) -> Sequence[Violation]:
        """Return the violations that a step proves; called for unrecorded steps too."""

    def proof(
        self, facts: StepFacts, *, evidence: Sequence[Event] = (), **fields: Unpack[Stated]
    ) -> Violation:
        """Make a violation at a step, or at an earlier one, whose last evidence has its stage."""
        stage = "eval" if evidence and evidence[-1].stage == "eval" else "train"
        shown = tuple(evidence) or (facts.event,)
        return self.violation(facts.event, stage=stage, evidence=shown, **fields)

    def proven(
        self, facts: StepFacts, *, evidence: Sequence[Event] = (), **fields: Unpack[Stated]
    ) -> list[Violation]:
        """A violation at a step, as the only one that is found."""
        return [self.proof(facts, evidence=evidence, **fields)]


class RankRule(BuiltInRule):
    """Judges complete steps of all ranks."""

    uses: ClassVar[Sequence[type[RunState]]] = (RankSteps,)
    observes = Needs(kinds=frozenset({"step"}))

    def bind(self, run_states: RunStates) -> None:
        self._steps = run_states.of(RankSteps)

    def observe(self, event: Event) -> Sequence[Violation]:
        if not isinstance(event, StepEvent):
            return ()
        return [found for step in self._steps.ready for found in self.judge(step)]

    @abstractmethod
    def judge(self, step: RunStep) -> Sequence[Violation]:
        """Return the violations that a step of all ranks proves."""


class InForceRule(BuiltInRule):
    """Judges the hyper-parameters of one process, mostly at its end."""

    uses: ClassVar[Sequence[type[RunState]]] = (HyperparametersInForce,)
    observes = Needs()
    needs = IN_FORCE
    ledger: HyperparametersInForce

    def bind(self, run_states: RunStates) -> None:
        self.ledger = run_states.of(HyperparametersInForce)

    def observe(self, event: Event) -> Sequence[Violation]:
        return ()


def line(where: str | None) -> str:
    """`` (train.py:12)``, or nothing."""
    return f" ({short(where)})" if where else ""


def subject(course: Course) -> Subject:
    """The subject of a finding about an optimizer."""
    return Subject(api=Families.OPTIMIZER_STEP, variable=course.made.id)
