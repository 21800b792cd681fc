"""Binary cross entropy gets targets that are not probabilities."""

from __future__ import annotations

from traincheck.readings.losses import BCE, BCE_LOGITS, as_loss, bounds, given, loss_needs
from traincheck.rules.base.rule import EventRule
from traincheck.rules.shared.losses import loss_violation
from traincheck.schema.events import CallEvent, Event
from traincheck.schema.findings import Violation
from traincheck.schema.values import tensor_summary

_LOSSES = (BCE, BCE_LOGITS)
_PROOF = 2  # losses: the first alone may be a trial
_BYTES = (200.0, 255.0)  # the maximum of a mask read from an image lies in this range
_CLASSES = 2.0


class TargetOutOfRange(EventRule, code="TC330", severity="error"):
    """target-out-of-range: targets of binary cross entropy lie outside 0 to 1.

    What it checks:
        The targets of binary_cross_entropy and binary_cross_entropy_with_logits are between 0 and
        1, or close to this range.

    Why it matters:
        The loss treats a target as the probability of "yes" and does not check its range. A target
        of 255 gives a loss without a lower bound: it falls below zero, and all outputs grow without
        limit. Labels of -1 and 1 weight the "no" far too much, and labels of 1 and 2 contain no
        "no" at all.

    Fires on:
        - Two losses of training with a target above 1.5 or below -0.5. Examples: masks of 0 and 255
          that were not divided, labels of 1 and 2, labels of -1 and 1, normalized pixels.

    Stays quiet on:
        - Soft and smoothed labels, also those of GANs up to 1.2, and rounding.
        - Targets that a mask ignores afterwards: reduction="none", or a weight that may contain
          zeros.
        - Losses without gradients.
        - Other losses, whose targets may have any value.

    Fix:
        Map the targets to 0 and 1: mask / 255, label - 1, (label + 1) / 2.

    Options:
        - low: targets are out of range below this value.
        - high: targets are out of range above this value.

    Source:
        https://docs.pytorch.org/docs/stable/generated/torch.nn.BCELoss.html
    """

    title = "{subject} is given targets outside of 0 to 1"
    likely_cause = "The targets are not probabilities: {observed}."
    fix = "Map the targets to 0 and 1: mask / 255, label - 1, (label + 1) / 2."
    needs = loss_needs(*_LOSSES)

    def __init__(self, low: float = -0.5, high: float = 1.5) -> None:
        super().__init__()
        self.low = low
        self.high = high
        self._low, self._high = self.low, self.high
        self._first: dict[str, CallEvent] = {}
        self._extremes: dict[str, tuple[float, float]] = {}

    def judge(self, event: Event) -> list[Violation]:
        call = as_loss(event, _LOSSES)
        if call is None or call.api in self.reported or not _counts_all(call):
            return []
        known = bounds(given(call, "target"))
        if known is None:
            return []
        low, high = known
        self.triggered += 1
        if low >= self._low and high <= self._high:
            return []
        before = self._extremes.get(call.api)
        if before is None:
            self._first[call.api], self._extremes[call.api] = call, (low, high)
            return []
        self.reported.add(call.api)
        low, high = min(low, before[0]), max(high, before[1])
        return [
            loss_violation(
                self.code,
                self._first[call.api],
                f"targets of {call.api.rpartition('.')[2]} are not probabilities",
                expected="targets between 0 and 1",
                observed=f"targets from {low:.3g} to {high:.3g}",
                cause=_cause(low, high),
            )
        ]


def _counts_all(call: CallEvent) -> bool:
    """Whether every target contributes to a loss that is trained on."""
    result = tensor_summary(call.result)
    if result is not None and not result.requires_grad:
        return False
    if call.args.get("reduction", "mean") == "none" or call.args.get("reduce") is False:
        return False
    known = bounds(given(call, "weight"))
    return call.args.get("weight") is None or (known is not None and known[0] > 0)


def _cause(low: float, high: float) -> str:
    if low >= 0 and _BYTES[0] < high <= _BYTES[1]:
        return "A mask has byte values: {observed}. It was not divided by 255."
    if (low, high) == (-1, 1):
        return "Labels are -1 and 1, as for a hinge loss, or pixels are normalized."
    if high == _CLASSES and low in (1, 2):
        return "Classes are numbered from 1: {observed}."
    return ""
