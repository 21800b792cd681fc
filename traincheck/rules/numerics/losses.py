"""Losses that do not fall."""

from __future__ import annotations

import math
import statistics
from collections import deque

from traincheck.readings.step_facts import DISCOVERY, StepFacts
from traincheck.rules.base.rule import fresh
from traincheck.rules.base.step_rule import StepRule
from traincheck.rules.shared.numbers import losses
from traincheck.schema.claims import Needs
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families

_PART = 4  # compare the first and the last of so many parts of the window


class LossNotDecreasing(StepRule, code="TC710", severity="info"):
    """loss-not-decreasing: training continues but the loss does not improve.

    What it checks:
        Over the first 400 optimizer steps, the median of the loss falls.

    Why it matters:
        A model that learns shows it within some hundred steps. If not, check labels, learning rate
        and the path of the gradient before the run continues for days.

    Fires on:
        - A median loss of the last 100 of 400 steps that is no lower than that of the first 100.

    Stays quiet on:
        - More than one optimizer (GAN, actor and critic).
        - A loss that is unknown or scaled by GradScaler.
        - A loss that changes sign.
        - Shorter runs.

    Fix:
        Try to overfit a single batch. Check labels, the learning rate and the inputs of the loss.

    Options:
        window: optimizer steps.

    Source:
        https://docs.aws.amazon.com/sagemaker/latest/dg/debugger-built-in-rules.html
    """

    title = "The loss has not decreased since step {step}"
    likely_cause = (
        "{observed}: labels may not belong to their samples, the learning rate may be too "
        "high or too low, or the gradient does not reach the parameters."
    )
    fix = "Try to overfit a single batch; check the labels and the learning rate."
    needs: Needs = DISCOVERY | Needs(
        calls=frozenset({Families.BACKWARD, Families.OPTIMIZER_STEP, Families.SCALER_STEP})
    )
    window: int = 400
    _values: deque[float] = fresh(deque)
    _first: int | None = None

    def judge(self, facts: StepFacts) -> list[Violation]:
        if self.is_over or facts.is_gap or not facts.updates():
            return []
        values = losses(facts)
        if (
            not values
            or len(self.ledger.holders) > 1
            or facts.event.counters.get("scaler_step", 0)
            or not all(map(math.isfinite, values))
        ):
            self.is_over = True
            return []
        if not self._values:
            self._first = facts.event.step
        self._values.append(sum(values) / len(values))
        if len(self._values) < self.window:
            return []
        self.is_over = True
        self.triggered += 1
        part = max(1, self.window // _PART)
        values = list(self._values)
        before, after = statistics.median(values[:part]), statistics.median(values[-part:])
        if after < before or min(values) < 0:
            return []
        return self.proven(
            facts,
            step=self._first,
            subject=Subject(api=Families.BACKWARD),
            symptom=Symptom.NOT_LEARNING,
            message=f"the loss is no better after {self.window} optimizer steps",
            expected="a median loss that falls",
            observed=f"a median loss of {before:.4g} at first and {after:.4g} at last",
        )


class ConstantLoss(StepRule, code="TC711"):
    """constant-loss: the loss does not change at all from the first step on.

    What it checks:
        The loss differs between steps, through learning or at least through the batch.

    Why it matters:
        A loss that does not depend on the batch does not depend on the model either. The output of
        the model is constant (dead units, clamping), or the loss does not compare it.

    Fires on:
        - The same nonzero loss, to the last bit, in the first 20 steps in which the optimizer
          stepped with a learning rate above zero.

    Stays quiet on:
        - A loss of zero.
        - A loss that becomes constant later, e.g. after convergence.
        - A learning rate of zero (warm-up).
        - A loss that is unknown.

    Fix:
        Compare the outputs of the model for two batches. If they are equal, check its activations.
        If not, check the loss.

    Options:
        steps: number of steps from the first on.

    Source:
        https://docs.aws.amazon.com/sagemaker/latest/dg/debugger-built-in-rules.html
    """

    title = "The loss is the same at every step"
    likely_cause = (
        "{observed}: the output of the model may be constant (dead units, clamping), or the "
        "loss may not depend on it."
    )
    fix = "Compare the model's outputs for two batches, then the inputs of the loss."
    needs: Needs = DISCOVERY | Needs(
        calls=frozenset({Families.BACKWARD, Families.OPTIMIZER_STEP}),
        states=frozenset({"parameter@hand"}),
    )
    steps: int = 20
    _count = 0
    _first: int | None = None
    _values: list[float] = fresh(list)

    def judge(self, facts: StepFacts) -> list[Violation]:
        if self.is_over or facts.is_gap or not (facts.updates() or facts.by_hand):
            return []
        rates = [rate for rates in facts.event.lr.values() for rate in rates]
        if not all(isinstance(rate, (int, float)) and rate > 0 for rate in rates):
            return []
        values = losses(facts)
        if not values or not any(values) or (self._count and values != self._values):
            self.is_over = True
            self.triggered += bool(values)
            return []
        if self._count == 0:
            self._first, self._values = facts.event.step, values
        self._count += 1
        if self._count < self.steps:
            return []
        self.is_over = True
        self.triggered += 1
        return self.proven(
            facts,
            step=self._first,
            subject=Subject(api=Families.BACKWARD),
            symptom=Symptom.NOT_LEARNING,
            message="the loss does not change between steps, not even with the batch",
            expected="a loss that differs between batches",
            observed=f"a loss of {values[-1]!r} in each of {self._count} steps",
            evidence=[m.call for m in facts.moments if m.family == Families.BACKWARD][:1],
        )
