"""Calls backward() twice on one loss, so that its gradient counts twice."""

from __future__ import annotations

from traincheck.readings.step_facts import DISCOVERY, GRADIENTS, Moment, StepFacts
from traincheck.rules.base.step_rule import StepRule, proof
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families

_CONFIRMED = 2


class SameLossTwice(StepRule, code="TC212"):
    """same-loss-twice: backward() runs twice on a retained graph of the same loss.

    What it checks:
        Between two steps, no two consecutive backward() get the same loss value without a forward
        or a zero_grad() in between.

    Why it matters:
        The gradient of this loss is doubled. Its weight relative to other losses, weight decay and
        clipping differs from the code, and a backward pass is wasted.

    Fires on:
        - Two iterations in a row with a second backward() on the retained graph of the same loss.

    Stays quiet on:
        - Several losses on one graph.
        - Gradients cleared between the two calls.
        - Losses of zero.
        - The losses of a GAN.

    Fix:
        Call backward() once for each loss, or on their sum.

    Source:
        https://discuss.pytorch.org/t/what-does-the-parameter-retain-graph-mean-in-the-variables-backward-method/1982
    """

    title = "backward() runs twice on the same loss"
    likely_cause = "retain_graph=True lets a second backward(){where} run on the same loss."
    fix = "Remove one of the two backward() calls, together with retain_graph=True."
    needs = DISCOVERY | GRADIENTS | Needs(calls=frozenset({Families.MODULE}))

    def __init__(self) -> None:
        super().__init__()
        self._last: CallEvent | None = None
        self._steps: list[int | None] = []

    def judge(self, facts: StepFacts) -> list[Violation]:
        if not facts.is_complete:
            self._last = None
            self._steps.clear()
            return []
        pair = self._repeated(facts)
        if pair is None:
            if facts.updates():
                self._steps.clear()
            return []
        self._steps.append(facts.event.step)
        if len(self._steps) != _CONFIRMED:
            return []
        return [
            proof(
                (self.code, Symptom.APPLIED_TWICE),
                facts,
                step=self._steps[0],
                subject=Subject(api=Families.BACKWARD),
                message=(
                    "backward() runs twice on the same loss with no zero_grad() in between, so "
                    "its gradient is doubled"
                ),
                expected="one backward() for each loss",
                observed=f"two backward() in a row on a loss of {_value(pair[0])}",
                evidence=(pair[1], pair[0]),
            )
        ]

    def _repeated(self, facts: StepFacts) -> tuple[CallEvent, CallEvent] | None:
        self._last = None
        found = None
        for moment in facts.moments:
            if moment.family == Families.BACKWARD:
                found = found or self._same(moment)
                self._last = moment.call if moment.call.args.get("retain_graph") else None
            elif moment.family in (Families.MODULE, Families.ZERO_GRAD, Families.OPTIMIZER_STEP):
                self._last = None
        return found

    def _same(self, moment: Moment) -> tuple[CallEvent, CallEvent] | None:
        value = _value(moment.call)
        self.triggered += 1
        if self._last is None or not value or value != _value(self._last) or moment.cleared:
            return None
        return self._last, moment.call


def _value(call: CallEvent) -> float | None:
    """The loss value, if it was recorded (a number in CPU memory)."""
    tensors = call.args.get("tensors")
    if isinstance(tensors, list):
        tensors = tensors[0] if len(tensors) == 1 else None
    value = tensors.get("value") if isinstance(tensors, dict) else None
    return value if isinstance(value, float) else None
