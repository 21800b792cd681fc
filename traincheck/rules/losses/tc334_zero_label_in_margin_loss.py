"""Targets are 0 and 1, but the loss expects -1 and 1."""

from __future__ import annotations

from dataclasses import dataclass

from traincheck.readings.losses import F, as_loss, given, loss_needs, number
from traincheck.rules.base.rule import EventRule
from traincheck.rules.shared.losses import loss_violation
from traincheck.schema.events import CallEvent, Event
from traincheck.schema.findings import Violation
from traincheck.schema.values import tensor_summary

# Effect of a target of zero
_OF_ZERO = {
    f"{F}cosine_embedding_loss": "pairs with a target of 0 are ignored",
    f"{F}margin_ranking_loss": "pairs with a target of 0 are ignored",
    f"{F}soft_margin_loss": "samples with a target of 0 are ignored",
    f"{F}hinge_embedding_loss": (
        "a target of 0 requires a distance that is small and large at once"
    ),
}
_PROOF = 3  # losses: the labels of a few samples may be coincidence


class ZeroLabelInMarginLoss(EventRule, code="TC334", aliases=("labels-of-zero",)):
    """zero-label-in-margin-loss: a loss that expects targets of -1 and 1 is given 0 and 1.

    What it checks:
        Targets of cosine_embedding_loss, margin_ranking_loss, soft_margin_loss and
        hinge_embedding_loss are -1 and 1, not 0 and 1.

    Why it matters:
        These losses multiply by the target, or compare it with 1 and -1. A pair with a target of 0
        has no gradient (in hinge_embedding_loss, it has that of both kinds). Nothing is learned
        from the half of the data that is to be separated, or ranked the other way. The loss falls
        all the same, and the easiest solution makes all pairs alike.

    Fires on:
        - Three losses of training whose targets range from exactly 0 to exactly 1, if no target was
          below 0.

    Stays quiet on:
        - Targets of -1 and 1, also with some of 0 for ties.
        - Targets that are all 0 or all 1.
        - reduction="none".
        - Losses without gradients.

    Fix:
        Pass 2 * target - 1.

    Source:
        https://github.com/seathiefwang/RankPose/issues/4
    """

    title = "{subject} is given targets of 0 and 1 in place of -1 and 1"
    likely_cause = (
        "{observed}: the targets may belong to another loss, or be bools converted to numbers."
    )
    fix = "Pass 2 * target - 1 as target."
    needs = loss_needs(*_OF_ZERO)

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[str, _Seen] = {}

    def judge(self, event: Event) -> list[Violation]:
        call = as_loss(event, _OF_ZERO)
        if call is None or call.args.get("reduction", "mean") == "none":
            return []
        result, target = tensor_summary(call.result), given(call, "target")
        low, high = number(target, "min"), number(target, "max")
        if low is None or high is None or (result is not None and not result.requires_grad):
            return []
        self.triggered += 1
        seen = self._seen.setdefault(call.api, _Seen(call))
        seen.is_over |= low < 0
        if seen.is_over or (low, high) != (0, 1):
            return []
        seen.first = call if seen.count == 0 else seen.first
        seen.count += 1
        if seen.count < _PROOF:
            return []
        seen.is_over = True
        function = call.api.rpartition(".")[2]
        return [
            loss_violation(
                self.code,
                seen.first,
                f"{function} is given targets of 0 and 1: {_OF_ZERO[call.api]}",
                expected="targets of -1 and 1",
                observed="targets from 0 to 1",
            )
        ]


@dataclass(slots=True)
class _Seen:
    """Losses with targets from 0 to 1, until a target is below 0."""

    first: CallEvent
    count: int = 0
    is_over: bool = False
