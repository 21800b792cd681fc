"""A hidden tanh or sigmoid whose outputs are at its limits, where it has no slope."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from traincheck.readings.small_samples import FEWEST_UNITS
from traincheck.rules.shared.activations import ACTIVATIONS, ActivationRule, Look, Place, Streak
from traincheck.schema.claims import Needs
from traincheck.schema.findings import Symptom, Violation

_ELEMENTS = 256  # with fewer, a record is no evidence
_KINDS = frozenset({"tanh", "sigmoid"})


class SaturatedActivation(ActivationRule, code="TC706"):
    """saturated-activation: nearly all outputs of a hidden tanh or sigmoid are at a limit.

    What it checks:
        At the scanned steps (the first four, then every tenth), the outputs of a hidden tanh or
        sigmoid are between its limits.

    Why it matters:
        At its limits a tanh or sigmoid is flat. Hardly any gradient passes, and the layers before
        it do not learn.

    Fires on:
        - 95 % of the outputs within 0.5 % of a limit, at three consecutive scanned steps from the
          start of the run.

    Stays quiet on:
        - The output of a model (probabilities become certain, pixels black and white).
        - Gates that close as training continues.
        - Functions that are made to clip (hardtanh).
        - Fewer than 256 outputs, or 10 units.
        - Evaluation.

    Fix:
        Normalize the inputs. Use an initialization that preserves the scale
        (torch.nn.init.xavier_uniform_), or a ReLU.

    Options:
        share: share of outputs at a limit, in [0, 1].
        looks: consecutive scanned steps.

    Source:
        https://docs.aws.amazon.com/sagemaker/latest/dg/debugger-built-in-rules.html
    """

    title = "The activation {subject} is saturated"
    likely_cause = (
        "{observed}. Its inputs are far too large, e.g. as they are not normalized, or the "
        "initial weights are large."
    )
    fix = "Normalize the inputs and use an initialization that preserves the scale, or a ReLU."
    needs: Needs = ACTIVATIONS

    def __init__(self, share: float = 0.95, looks: int = 3) -> None:
        super().__init__()
        self.share = share
        self.looks = looks
        self._streaks: dict[Place, Streak] = {}

    def judge(self, look: Look) -> Sequence[Violation]:
        share = look.stats.get("saturated")
        if share is None or look.kind not in _KINDS or look.is_output:
            return ()
        if prod(look.summary.shape) < _ELEMENTS or look.units < FEWEST_UNITS:
            return ()
        streak = self._streaks.setdefault(look.place, Streak())
        if streak.is_reported:
            return ()
        if share < self.share:
            streak.is_reported = True  # it was good once: later saturation may be intended
            return ()
        streak.add(look)
        if streak.steps < self.looks:
            return ()
        streak.is_reported = True
        seen = f"{share:.0%} of its outputs at a limit, at {streak.steps} steps"
        return [
            Violation(
                check_id=self.code,
                step=streak.first,
                rank=look.event.rank,
                stage="train",
                subject=look.place.subject,
                symptom=Symptom.DEAD_UNITS,
                message=f"{look.place.label} is at its limits, where its gradient vanishes",
                expected="outputs of a hidden activation are between its limits",
                observed=f"{look.place.label}: {seen}",
                evidence=(look.event,),
            )
        ]
