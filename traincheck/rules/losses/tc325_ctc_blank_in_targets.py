"""The blank of ctc_loss occurs among its labels."""

from __future__ import annotations

from traincheck.readings.losses import CTC, as_loss, given, loss_needs, number
from traincheck.rules.base.rule import BuiltInRule
from traincheck.rules.shared.losses import loss_violation
from traincheck.schema.events import CallEvent, Event
from traincheck.schema.findings import Violation

_BATCH, _ROWS = 3, 2  # dims of batched log_probs; dims of targets padded to one length


class CtcBlankInTargets(
    BuiltInRule, code="TC325", severity="error", aliases=("blank-among-labels",)
):
    """ctc-blank-in-targets: ctc_loss is given its blank as a label.

    What it checks:
        No label of ctc_loss is the index of the blank.

    Why it matters:
        The blank marks that there is no label. As a label it creates paths that cannot be decoded.
        The model learns to end early, or never learns the character with index 0. The loss falls
        all the same.

    Fires on:
        - Unpadded targets in one row that contain the blank.
        - Padded targets that contain the blank while every target length is the full length, so
          padding counts as labels.

    Stays quiet on:
        - Padding with the blank after the target lengths.
        - Labels from 1 on with blank=0.
        - A separate blank index after the last class.
        - Different lengths, since the position of the blank is then unknown.
        - Losses without gradients.

    Fix:
        Pass the lengths before padding, and start labels at 1 or pass blank=number of classes.

    Source:
        https://docs.pytorch.org/docs/stable/generated/torch.nn.CTCLoss.html
    """

    title = "{subject} is given its blank as a label"
    likely_cause = (
        "target_lengths may count padding, or the class numbers start at the index of the blank."
    )
    fix = "Pass the lengths before padding. Reserve one index for the blank."
    needs = loss_needs(CTC)

    def observe(self, event: Event) -> list[Violation]:
        call = as_loss(event, (CTC,))
        if call is None:
            return []
        targets, blank = given(call, "targets"), call.args.get("blank", 0)
        low, high = number(targets, "min"), number(targets, "max")
        if targets is None or low is None or high is None or not _are_all_labels(call):
            return []
        self.triggered += 1
        return [self._violation(call, blank)] if blank in (low, high) else []

    def _violation(self, call: CallEvent, blank: object) -> Violation:
        return loss_violation(
            self.code,
            call,
            f"{blank} is the blank of ctc_loss, but also one of its labels",
            expected=f"labels other than {blank}",
            observed=f"some labels are {blank}, none of them padding",
        )


def _are_all_labels(call: CallEvent) -> bool:
    """Whether the lengths exclude no element of targets as padding."""
    targets, log_probs = given(call, "targets"), given(call, "log_probs")
    if targets is None or log_probs is None or len(log_probs.shape) != _BATCH:
        return False
    if len(targets.shape) != _ROWS:  # concatenated in one row
        return True
    return _extremes(call) == (targets.shape[1],) * 2


def _extremes(call: CallEvent) -> tuple[float | None, float | None]:
    """The smallest and the largest target length."""
    lengths = call.args.get("target_lengths")
    if isinstance(lengths, list):
        found = [length for length in lengths if isinstance(length, int)]
        return (min(found), max(found)) if found and len(found) == len(lengths) else (None, None)
    tensor = given(call, "target_lengths")
    return number(tensor, "min"), number(tensor, "max")
