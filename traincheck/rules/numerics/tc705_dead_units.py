"""Units of an activation that pass nothing on, whatever the sample."""

from __future__ import annotations

from collections.abc import Sequence

from traincheck.facts.small_samples import may_be_chance
from traincheck.rules.shared.activations import ACTIVATIONS, ActivationRule, Look, Place, Streak
from traincheck.schema.claims import Needs
from traincheck.schema.findings import Symptom, Violation

_SAMPLES = 32  # a look at fewer says nothing
_SAMPLES_OF_ALL = 128  # over all looks
_RARE = 0.1  # of units that are on: below it the others may just be as rare
_LEAKING = 0.95  # share of units, where a slope is left on the other side
_HARD = frozenset({"relu", "relu6", "threshold"})


class DeadUnits(ActivationRule, code="TC705"):
    """dead-units: most units of an activation are off for every sample.

    What it checks:
        In the steps in which activations are looked at (the first four, then each tenth), most
        units of each ReLU or one of its relatives are on for some sample of the batch. Both the
        modules and the functions.

    Why it matters:
        A unit that is off for all samples has no gradient and cannot come back. A layer of such
        units blocks the signal, and the model learns with what is left of it.

    Fires on:
        70 % of the units off over whole batches in three looked-at steps in a row, while the
        others are on often; or all of them. With a slope on the other side (LeakyReLU, PReLU,
        RReLU) or a smooth one (GELU, SiLU, ELU ...): 95 %.

    Stays quiet on:
        Zeros as such: many units that are rarely on are sparse, not dead; so few units that chance
        may turn as many off, as 3 of 4 in the bottleneck of a squeeze-and-excitation block; batches
        of fewer than 32 samples (positions of images count); evaluation.

    Fix:
        Lower the learning rate, use the default initialization and biases that are not negative;
        LeakyReLU or GELU lets units come back.

    Options:
        share: of units that are off, in [0, 1].
        looks: looked-at steps in a row.

    Source:
        https://arxiv.org/abs/1903.06733,
        https://docs.aws.amazon.com/sagemaker/latest/dg/debugger-built-in-rules.html
    """

    title = "Most units of {subject} are dead"
    likely_cause = (
        "{observed}. A step with too high a learning rate, an initialization with large "
        "weights or negative biases, or inputs that are not normalized push them there."
    )
    fix = (
        "Lower the learning rate, use the default initialization, normalize the inputs; "
        "LeakyReLU or GELU lets units come back."
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
        seen = f"{dead:.0%} of the units off for all {look.samples} samples of a batch"
        return Violation(
            check_id=self.code,
            step=streak.first,
            rank=look.event.rank,
            stage="train",
            subject=look.place.subject,
            symptom=Symptom.DEAD_UNITS,
            message=f"most units of {look.place.label} pass nothing on",
            expected="most units are on for some sample of a batch",
            observed=f"{look.place.label}: {seen}, at {streak.steps} steps",
            evidence=(look.event,),
        )
