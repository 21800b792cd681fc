"""An optimizer holds a parameter that never gets a gradient."""

from __future__ import annotations

from traincheck.readings.step_facts import DISCOVERY, GRADIENTS, StepFacts
from traincheck.rules.base.step_rule import StepRule
from traincheck.rules.shared.gradient_reach import LEAVES, Arrival, cut_off
from traincheck.schema.events import StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation


class UnusedParameter(StepRule, code="TC106", severity="info"):
    """unused-parameter: a parameter is to be trained but takes no part in the loss.

    What it checks:
        When the run ends, every parameter that requires grad and is held by a stepping optimizer
        has had a gradient, if its model was trained.

    Why it matters:
        A layer was defined but not used in forward, or left out of the loss. If this is on purpose,
        it costs memory, and DistributedDataParallel needs find_unused_parameters.

    Fires on:
        - Parameters without a single gradient in a run of several steps.

    Stays quiet on:
        - Frozen parameters.
        - Experts and layers that are used only occasionally.
        - Models that no step has trained.
        - Gradients that are cut off on their way (TC105).
        - Short runs.

    Fix:
        Use the layer in forward and in the loss, remove it, or set requires_grad=False.

    Options:
        - steps: number of updates that is enough for a report at the end of the run.
        - certain: number of updates after which it is reported while the run goes on.

    Source:
        https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """

    title = "No step brings a gradient to {variables}"
    likely_cause = (
        "The layer may not be used in forward, or its result is detached or not part of the loss."
    )
    fix = "Use the layer, remove it, or set requires_grad=False for its parameters."
    needs = DISCOVERY | GRADIENTS | LEAVES

    def __init__(self, steps: int = 3, certain: int = 200) -> None:
        super().__init__()
        self.steps = steps
        self.certain = certain
        self._reported: set[int] = set()
        self._arrival = Arrival()
        self._seen: dict[
            int, tuple[int, StepEvent]
        ] = {}  # updates without a gradient, the first of them
        self._cut: set[int] = set()

    def judge(self, facts: StepFacts) -> list[Violation]:
        if facts.is_gap:
            self._seen.clear()  # it may have had a gradient in the gap
            self._arrival.ever |= self.ledger.parameters.keys()
            return []
        missing = self._arrival.missing(self.ledger, facts)
        if not facts.is_complete or not facts.updates():
            return []
        self.triggered += 1
        self._seen = {i: seen for i, seen in self._seen.items() if i in missing}
        if not missing:
            return []
        self._cut |= cut_off(self.ledger, facts, missing)
        books = self.ledger.parameters
        roots = {books[i].root for i in facts.reached & books.keys()}
        for identity in missing:
            if books[identity].root in roots:
                count, first = self._seen.get(identity, (0, facts.event))
                self._seen[identity] = (count + 1, first)
        return self._sure(self.certain)

    def finish(self) -> list[Violation]:
        """Report after fewer updates: no gradient can follow."""
        return self._sure(self.steps)

    def _sure(self, steps: int) -> list[Violation]:
        sure = {
            identity: seen
            for identity, seen in self._seen.items()
            if seen[0] >= steps and identity not in self._cut and identity not in self._reported
        }
        self._reported |= sure.keys()
        return [
            self._violation(identity, sure[identity])
            for identity in sorted(sure, key=self.ledger.name)
        ]

    def _violation(self, identity: int, seen: tuple[int, StepEvent]) -> Violation:
        count, event = seen
        name = self.ledger.name(identity)
        return Violation(
            check_id=self.code,
            step=event.step,
            rank=event.rank,
            stage="train",
            subject=Subject(variable=name),
            symptom=Symptom.NO_GRADIENT,
            message=f"no gradient ever reaches {name}, although an optimizer holds it",
            expected="a gradient in some step",
            observed=f"none in {count} steps",
            evidence=(event,),
        )
