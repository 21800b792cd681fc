"""An optimizer keeps updating a parameter that was frozen."""

from __future__ import annotations

from traincheck.readings.step_facts import DISCOVERY, GRADIENTS, StepFacts
from traincheck.rules.base.step_rule import StepRule, proof
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent
from traincheck.schema.findings import Subject, Symptom, Violation

_CONFIRMED = 2


class FrozenParameterUpdated(StepRule, code="TC107", severity="error"):
    """frozen-parameter-updated: a frozen parameter changes at every optimizer step.

    What it checks:
        After its requires_grad is switched off, a parameter no longer changes in the steps of the
        optimizer that holds it.

    Why it matters:
        The optimizer does not check requires_grad. As long as the parameter has a gradient, even
        one of zeros, momentum and weight decay keep moving it.

    Fires on:
        - Two steps in a row that change a parameter which was frozen during the run, is still held
          by the optimizer and still has a gradient.

    Stays quiet on:
        - Parameters whose gradient is None.
        - Parameters that were frozen from the start and are written by other code (momentum
          encoders, averaged weights).
        - Weights clipped or normalized by hand.
        - Parameters that no stepping optimizer holds.
        - Parameters that are frozen only during the step of another optimizer, e.g. a discriminator
          while the generator learns.

    Fix:
        Set the gradient of the frozen parameters to None (zero_grad(set_to_none=True)), or rebuild
        the optimizer from the parameters that are still trained.

    Source:
        https://discuss.pytorch.org/t/parameters-with-requires-grad-false-are-updated-during-training/90096
    """

    title = "The optimizer still updates frozen parameters: {variables}"
    likely_cause = (
        "requires_grad was set to False, but {variables} still {has a gradient|have gradients} "
        "and the optimizer{where} still holds {it|them}: {observed}."
    )
    fix = (
        "Call zero_grad(set_to_none=True) after freezing, or rebuild the optimizer from the "
        "parameters that are to be trained."
    )
    needs = DISCOVERY | GRADIENTS | Needs(states=frozenset({"parameter@step"}))

    def __init__(self) -> None:
        super().__init__()
        self._trained: set[int] = set()
        self._streak: dict[int, tuple[int, int | None]] = {}

    def judge(self, facts: StepFacts) -> list[Violation]:
        if not facts.is_complete:
            self._streak.clear()
            return []
        books = self.ledger.parameters
        streak: dict[int, tuple[int, int | None]] = {}
        found: list[Violation] = []
        for moment in facts.updates():
            present = moment.present & books.keys()
            self._trained |= {i for i in present if books[i].requires_grad}
            frozen = {i for i in present & self._trained if not books[i].requires_grad}
            self.triggered += bool(frozen)
            # A parameter frozen only for another optimizer's update is not frozen at its own
            moved = (frozen & facts.changed) - facts.flipped
            for identity in sorted(moved, key=self.ledger.name):
                count, first = self._streak.get(identity, (0, facts.event.step))
                streak[identity] = (count + 1, first)
                if count + 1 >= _CONFIRMED:
                    step = first if count + 1 == _CONFIRMED else facts.event.step
                    found.append(self._violation(identity, step, moment.call, facts))
        if facts.updates():
            self._streak = streak
        return found

    def _violation(
        self, identity: int, step: int | None, call: CallEvent, facts: StepFacts
    ) -> Violation:
        name = self.ledger.name(identity)
        label = self.ledger.holders[str(call.owner)].label
        return proof(
            (self.code, Symptom.SILENT_WRITE),
            facts,
            step=step,
            subject=Subject(variable=name),
            message=f"the step of {label} changes {name}, frozen earlier (requires_grad=False)",
            expected="a frozen parameter stays unchanged",
            observed=f"{label} moves it by momentum, weight decay or an old gradient",
            evidence=(call,),
        )
