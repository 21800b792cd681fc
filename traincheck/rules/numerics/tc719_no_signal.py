"""All gradients are zero because each way back from the loss ends in one operation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from traincheck.readings.operations import Look, Operation, OperationsSeen
from traincheck.readings.provider import RunState, RunStates
from traincheck.readings.step_facts import DISCOVERY, GRADIENTS, StepFacts
from traincheck.readings.training_state import TrainingState
from traincheck.rules.base.rule import Streak, extend
from traincheck.rules.base.step_rule import StepRule
from traincheck.rules.shared.numbers import losses
from traincheck.schema.claims import Needs
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.operations import OperationUses
from traincheck.schema.places import short

_LOOKS = 3  # of steps in the streak
_NAMED = 2
_WHY: Mapping[str, str] = {
    "factor": "{function} at {where} multiplies by 0, in all elements that were read",
    "dead": "all results of {function} at {where} that were read are 0",
    "limit": "{function} at {where} changes all elements that were read",
    "mask": "{function} at {where} replaces all elements that were read",
    "choice": "{function} at {where} takes what has no gradient, in all elements that were read",
    "softmax": "{function} at {where} runs over one element, so that its result is constant",
    "labels": "{function} at {where} ignores all labels that were read",
    "steps": "the derivative of {function} at {where} is 0",
}


class NoSignal(StepRule, code="TC719", severity="error"):
    """no-signal: the loss is constant for the model, because one operation cuts every way back.

    What it checks:
        While all gradients of an optimizer are zero and the loss is zero or unknown, some way back
        from the loss to the parameters is not multiplied by 0, masked, clamped or rounded.

    Why it matters:
        The run ends, prints a loss of 0, and has learned nothing.

    Fires on:
        - Advantages that are all 0, since each group has one reward.
        - A mask that excludes all elements of the loss.
        - A weight of 0 for the whole loss.

        In five consecutive optimizer steps all gradients are exactly zero, and in three of them
        each way back was seen to end in such an operation. The ways are looked at in the first six
        steps and in every fiftieth, and up to about 2,048 elements of a tensor are read.

    Stays quiet on:
        - A loss that is not zero (TC704).
        - A loss of zero where a way is free, e.g. a satisfied margin.
        - A step without advantages among others.

    Fix:
        Print what the operation multiplies by, masks or clamps, and follow it to where it is made.

    Options:
        steps: consecutive steps.

    Source:
        https://github.com/huggingface/trl/issues/3917
    """

    title = "No gradient reaches a parameter: {variables} {cuts|cut} every way back from the loss"
    likely_cause = "What it multiplies by, masks or clamps leaves nothing of the loss: {observed}."
    fix = "Print the factor, mask or limit of this operation, and follow it to where it is made."
    uses: ClassVar[Sequence[type[RunState]]] = (TrainingState, OperationsSeen)
    needs: Needs = DISCOVERY | GRADIENTS | needs_of(OperationUses)

    def __init__(self, steps: int = 5) -> None:
        super().__init__()
        self.steps = steps
        self._streaks: dict[str, Streak] = {}

    def bind(self, run_states: RunStates) -> None:
        super().bind(run_states)
        self._operations = run_states.of(OperationsSeen)

    def judge(self, facts: StepFacts) -> list[Violation]:
        if not facts.is_complete:
            self._streaks.clear()
            return []
        found: list[Violation] = []
        for moment in facts.updates():
            holder = self.ledger.holders.get(str(moment.call.owner))
            if holder is None or not moment.present or holder.event.id in self.reported:
                continue
            self.triggered += 1
            if (
                moment.applied
                or not facts.reached.isdisjoint(holder.ids)
                or any(losses(facts) or ())
            ):
                self._streaks.pop(holder.event.id, None)
                continue
            streak = extend(self._streaks, holder.event.id, facts.event.step)
            cuts = self._cuts(streak.first) if streak.count >= self.steps else []
            if not cuts:
                continue
            self.reported.add(holder.event.id)
            nearest, look = cuts[0]
            observed = "; ".join(_said(one) for one, _ in cuts[:_NAMED])
            found.append(
                self.proof(
                    facts,
                    step=streak.first,
                    subject=Subject(variable=f"{nearest.function} ({short(nearest.where)})"),
                    symptom=Symptom.NOT_LEARNING,
                    message=f"all gradients of {holder.label} are exactly zero; {observed}",
                    expected="a way back from the loss to a parameter",
                    observed=observed,
                    evidence=[look.alone(nearest)],
                )
            )
        return found

    def _cuts(self, first: int | None) -> list[tuple[Operation, Look]]:
        """The operations that cut the ways back, if they did so in enough steps since the first."""

        def within(looks: Sequence[Look]) -> list[Look]:
            return [one for one in looks if first is None or (one.event.step or 0) >= first]

        steps = {
            one.event.step
            for _, line in self._operations.of("backward")
            for one in within(line.looks)
        }
        if len(steps) < _LOOKS:
            return []
        return [
            (key, looks[-1])
            for key, line in self._operations.of("cut")
            if len(looks := within(line.looks)) >= _LOOKS
        ]


def _said(cut: Operation) -> str:
    return _WHY[cut.of].format(function=cut.function, where=short(cut.where))
