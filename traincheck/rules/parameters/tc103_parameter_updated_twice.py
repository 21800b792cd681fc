"""Two optimizers apply the same gradient to one parameter."""

from __future__ import annotations

from traincheck.facts.step_facts import DISCOVERY, GRADIENTS, StepFacts
from traincheck.rules.base.rule import Streak, extend
from traincheck.rules.base.step_rule import StepRule
from traincheck.schema.events import CallEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families

_CONFIRMED = 2


class ParameterUpdatedTwice(StepRule, code="TC103"):
    """parameter-updated-twice: two optimizers hold a parameter and both apply its gradient.

    What it checks:
        Between two changes of its gradient, only one optimizer updates a parameter.

    Why it matters:
        Each gradient counts twice, with two learning rates and two sets of moments. The parameter
        moves too far, and neither optimizer is tuned for that.

    Fires on:
        - Two iterations in a row in which two optimizers step one after the other with the same
          gradient of a parameter that both hold.

    Stays quiet on:
        - Optimizers that alternate, e.g. Adam first and then LBFGS.
        - A shared part whose gradient is cleared or recomputed between the two steps.
        - An optimizer that wraps another one.
        - Tied weights.

    Fix:
        Give each parameter to one optimizer only. Use parameter groups for different settings.

    Source:
        https://pytorch.org/docs/stable/optim.html#per-parameter-options
    """

    title = "Two optimizers update {variables} with one gradient"
    likely_cause = "{observed}, and both step{where} after the same backward()."
    fix = "Take {variables} out of one of the two optimizers."
    needs = DISCOVERY | GRADIENTS

    def __init__(self) -> None:
        super().__init__()
        self._streak: dict[int, Streak] = {}  # iterations in a row

    def judge(self, facts: StepFacts) -> list[Violation]:
        if not facts.is_complete:
            self._streak.clear()
            return []
        twice = self._twice(facts)
        if facts.updates():
            self._streak = {i: s for i, s in self._streak.items() if i in twice}
        found: list[Violation] = []
        for identity in sorted(twice, key=self.ledger.name):
            streak = extend(self._streak, identity, facts.event.step)
            if streak.count >= _CONFIRMED:
                step = streak.at(_CONFIRMED, facts.event.step)
                found.append(self._violation(identity, step, twice[identity], facts))
        return found

    def _twice(self, facts: StepFacts) -> dict[int, tuple[CallEvent, CallEvent]]:
        applied: dict[int, CallEvent] = {}
        twice: dict[int, tuple[CallEvent, CallEvent]] = {}
        for moment in facts.moments:
            for identity in moment.cleared | moment.reached:
                applied.pop(identity, None)
            if moment.family != Families.OPTIMIZER_STEP or moment.call.exception is not None:
                continue
            self.triggered += 1
            for identity in moment.applied:
                before = applied.get(identity)
                # Whether the steps follow each other. A wrapper's step begins before the inner one.
                if before is not None and (
                    before.owner != moment.call.owner and before.span < moment.call.span
                ):
                    twice[identity] = (before, moment.call)
                applied[identity] = moment.call
        return twice

    def _violation(
        self,
        identity: int,
        step: int | None,
        calls: tuple[CallEvent, CallEvent],
        facts: StepFacts,
    ) -> Violation:
        name = self.ledger.name(identity)
        first, second = (self.ledger.holders[str(call.owner)].label for call in calls)
        return self.proof(
            facts,
            step=step,
            subject=Subject(variable=name),
            symptom=Symptom.APPLIED_TWICE,
            message=f"{first} and {second} both apply the same gradient to {name}",
            expected="one optimizer applies each gradient",
            observed=f"{first} and {second} hold the same parameters",
            evidence=(calls[1], calls[0]),
        )
