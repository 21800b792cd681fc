"""Labels of 0 and 1 where a loss tells pairs by -1 and 1."""

from __future__ import annotations

from dataclasses import dataclass

from traincheck.facts.losses import F, as_loss, given, loss_needs, number
from traincheck.rules.base.event_rule import EventRule
from traincheck.rules.shared.losses import loss_violation
from traincheck.schema.events import CallEvent, Event
from traincheck.schema.findings import Violation
from traincheck.schema.values import tensor_summary

# What a target of zero comes to
_OF_ZERO = {
    f"{F}cosine_embedding_loss": "pairs with a target of 0 are left out",
    f"{F}margin_ranking_loss": "pairs with a target of 0 are left out",
    f"{F}soft_margin_loss": "samples with a target of 0 are left out",
    f"{F}hinge_embedding_loss": "a target of 0 asks for a distance that is small and large at once",
}
_PROOF = 3  # losses; what a few samples are labelled with may be chance


class ZeroLabelInMarginLoss(EventRule, code="TC334", aliases=("labels-of-zero",)):
    """zero-label-in-margin-loss: a loss that tells pairs by -1 and 1 is given 0 and 1.

    What it checks:
        Targets of cosine_embedding_loss, margin_ranking_loss, soft_margin_loss and
        hinge_embedding_loss are -1 and 1, not 0 and 1.

    Why it matters:
        These losses multiply with the target, or compare it with 1 and -1. A pair with a target of
        0 has no gradient (of hinge_embedding_loss, that of both kinds): nothing is learned from the
        half of the data that is to be told apart, or ranked the other way. The loss falls all the
        same, and what is easiest is that all pairs are alike.

    Fires on:
        Three losses of training whose targets reach from 0 to 1 exactly, when none was below 0.

    Stays quiet on:
        Targets of -1 and 1, also with some of 0 for ties; targets that are all 0 or all 1;
        reduction="none"; losses without gradients.

    Fix:
        Give 2 * target - 1.

    Source:
        https://github.com/seathiefwang/RankPose/issues/4
    """

    title = "{subject} is given targets of 0 and 1 in place of -1 and 1"
    likely_cause = "{observed}: they are those of another loss, or bool as a number."
    fix = "Give 2 * target - 1."
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
    """Losses with targets from 0 to 1, until one is below."""

    first: CallEvent
    count: int = 0
    is_over: bool = False
