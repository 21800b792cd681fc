"""Activation units that are zero for every sample."""

from __future__ import annotations

from collections.abc import Sequence

from traincheck.readings.small_samples import may_be_chance
from traincheck.rules.shared.activations import ACTIVATIONS, ActivationRule, Look, Place, Streak
from traincheck.schema.claims import Needs
from traincheck.schema.findings import Symptom, Violation

_SAMPLES = 32  # with fewer, a record is no evidence
_SAMPLES_OF_ALL = 128  # over all records
_RARE = 0.1  # share of active outputs of the other units: below it, these may be just as rare
_LEAKING = 0.95  # share of units, if the other side has a slope
_LEAKING_KINDS = frozenset({"leakyrelu", "prelu", "rrelu"})
_HARD = frozenset({"relu", "relu6", "threshold"})


class DeadUnits(ActivationRule, code="TC705"):
    """dead-units: most units of an activation are zero for every sample.

    What it checks:
        Most units of each ReLU or similar activation (module or function) are active for some
        sample of the batch. Steps are scanned: the first four, then every tenth.

    Why it matters:
        A unit that is zero for all samples has no gradient and cannot recover. A layer of such
        units blocks the signal, and the model learns only with the remaining units.

    Fires on:
        - 70 % of the units zero over whole batches at three consecutive scanned steps, while the
          others are often active.
        - All units zero at three consecutive scanned steps.
        - With a slope on the other side (LeakyReLU, PReLU, RReLU) or a smooth function (GELU, SiLU,
          ELU ...): 95 % of the units.

    Stays quiet on:
        - Sparse activations: many units that are rarely active are not dead.
        - So few units that chance may turn as many off, e.g. 3 of 4 in the bottleneck of a
          squeeze-and-excitation block.
        - Batches of fewer than 32 samples (positions of images count).
        - Scores of rows against the same rows, in attention over the nodes of a graph: a softmax of
          LeakyReLU depends on their differences.
        - Evaluation.

    Fix:
        Lower the learning rate, and use the default initialization and biases that are not
        negative. LeakyReLU or GELU lets units recover.

    Options:
        share: share of dead units, in [0, 1].
        looks: consecutive scanned steps.

    Source:
        https://arxiv.org/abs/1903.06733,
        https://docs.aws.amazon.com/sagemaker/latest/dg/debugger-built-in-rules.html
    """

    title = "Most units of {subject} are dead"
    likely_cause = (
        "{observed}. Possible causes are a step with too high a learning rate, an "
        "initialization with large weights or negative biases, and inputs that are not "
        "normalized."
    )
    fix = (
        "Lower the learning rate, use the default initialization, and normalize the inputs. "
        "LeakyReLU or GELU lets units recover."
    )
    needs: Needs = ACTIVATIONS

    def __init__(self, share: float = 0.7, looks: int = 3) -> None:
        super().__init__()
        self.share = share
        self.looks = looks
        self._streaks: dict[Place, Streak] = {}

    def judge(self, look: Look) -> Sequence[Violation]:
        dead = look.stats.get("dead")
        if dead is None or look.samples < _SAMPLES:
            return ()
        if look.kind in _LEAKING_KINDS and look.units == look.samples:
            return ()
        if may_be_chance(dead, look.units) or not self._is_bad(look, dead):
            self._streaks.pop(look.place, None)
            return ()
        streak = self._streaks.setdefault(look.place, Streak())
        streak.add(look)
        if streak.is_reported or streak.steps < self.looks or streak.samples < _SAMPLES_OF_ALL:
            return ()
        streak.is_reported = True
        return [self._violation(look, dead, streak)]

    def _is_bad(self, look: Look, dead: float) -> bool:
        if look.kind not in _HARD:
            return dead >= _LEAKING
        if dead == 1.0:
            return True
        on = (1 - look.stats.get("zeros", 1.0)) / (1 - dead)
        return dead >= self.share and on >= _RARE

    def _violation(self, look: Look, dead: float, streak: Streak) -> Violation:
        off = "zero" if look.kind in _HARD else "off"
        seen = f"{dead:.0%} of the units are {off} for all {look.samples} samples of a batch"
        return Violation(
            check_id=self.code,
            step=streak.first,
            rank=look.event.rank,
            stage="train",
            subject=look.place.subject,
            symptom=Symptom.DEAD_UNITS,
            message=f"most units of {look.place.label} are {off} for every sample",
            expected="most units are active for some sample of a batch",
            observed=f"{look.place.label}: {seen}, at {streak.steps} steps",
            evidence=(look.event,),
        )
