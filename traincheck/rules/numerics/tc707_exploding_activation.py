"""Outputs of an activation grow far beyond their history."""

from __future__ import annotations

from collections.abc import Sequence

from traincheck.rules.shared.activations import ACTIVATIONS, ActivationRule, Look, Place, Streak
from traincheck.rules.shared.numbers import History
from traincheck.schema.claims import Needs
from traincheck.schema.findings import Symptom, Violation

_ENOUGH = 2  # records that make a history
_CONFIRMED = 2  # steps


class ExplodingActivation(ActivationRule, code="TC707"):
    """exploding-activation: outputs of an activation leave the range of their history.

    What it checks:
        The largest output of each activation stays near that of the first steps.

    Why it matters:
        The model diverges: the loss jumps, gradients explode, and NaN follows.

    Fires on:
        - A largest output above 10000 and more than 1000 times the median of the earlier records,
          at two consecutive scanned steps. Scanned are the first four steps, then every tenth.

    Stays quiet on:
        - Large outputs from the start.
        - Single outliers.
        - Activations with limits.
        - Evaluation.

    Fix:
        Lower the learning rate or warm it up, and normalize inputs and layers.

    Options:
        ratio: factor over the median of the history.
        floor: outputs up to this are never too large.

    Source:
        https://docs.aws.amazon.com/sagemaker/latest/dg/debugger-built-in-rules.html
    """

    title = "The outputs of {subject} explode"
    likely_cause = "{observed}. The learning rate may be too high for this model."
    fix = "Lower the learning rate or warm it up, and normalize inputs and layers."
    needs: Needs = ACTIVATIONS

    def __init__(self, ratio: float = 1000.0, floor: float = 10000.0) -> None:
        super().__init__()
        self.ratio = ratio
        self.floor = floor
        self._histories: dict[Place, History] = {}
        self._streaks: dict[Place, Streak] = {}

    def judge(self, look: Look) -> Sequence[Violation]:
        stats = look.stats
        if stats.get("nonfinite") or "max" not in stats or "min" not in stats:
            return ()
        largest = max(abs(stats["min"]), abs(stats["max"]))
        history = self._histories.setdefault(look.place, History(16))
        usual = history.median if len(history) >= _ENOUGH else largest
        if largest <= self.floor or largest <= self.ratio * usual:
            history.add(largest)
            self._streaks.pop(look.place, None)
            return ()
        streak = self._streaks.setdefault(look.place, Streak())
        streak.add(look)
        if streak.is_reported or streak.steps < _CONFIRMED:
            return ()
        streak.is_reported = True
        return [
            self.violation(
                look.event,
                step=streak.first,
                stage="train",
                subject=look.place.subject,
                symptom=Symptom.GRADIENT_SIZE,
                message=f"the outputs of {look.place.label} leave the range of their history",
                expected="the largest output stays near its history",
                observed=f"{look.place.label}: up to {largest:.3g}, usually {usual:.3g}",
            )
        ]
