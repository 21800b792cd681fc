"""Binary cross entropy is given targets that are no probabilities."""

from __future__ import annotations

from traincheck.facts.losses import BCE, BCE_LOGITS, as_loss, given, loss_needs, number
from traincheck.rules.base.event_rule import EventRule
from traincheck.rules.shared.losses import loss_violation
from traincheck.schema.events import CallEvent, Event
from traincheck.schema.findings import Violation
from traincheck.schema.values import tensor_summary

_LOSSES = (BCE, BCE_LOGITS)
_PROOF = 2  # losses; the first alone may be somebody's trial
_BYTES = (200.0, 255.0)  # a mask read from an image reaches into this, and no further
_CLASSES = 2.0


class TargetOutOfRange(EventRule, code="TC330", severity="error"):
    """target-out-of-range: targets of binary cross entropy lie outside 0 to 1.

    What it checks:
        The targets of binary_cross_entropy and binary_cross_entropy_with_logits are between 0 and
        1, or near it.

    Why it matters:
        The loss takes a target for the probability of "yes" and does not look whether it is one.
        Of 255 it makes a loss without a lower end, which is the smaller the larger the output:
        it falls below zero, and all outputs grow without end. Labels of -1 and 1 pull the "no" far
        too much, and those of 1 and 2 know no "no" at all.

    Fires on:
        Two losses of training with a target above 1.5 or below -0.5: masks of 0 and 255 that were
        not divided, labels of 1 and 2, labels of -1 and 1, pixels that were normalized.

    Stays quiet on:
        Soft labels and smoothed ones, also those of GANs up to 1.2, and rounding; targets that a
        mask leaves out afterwards: reduction="none", or a weight that may hold zeros; losses
        without gradients; other losses, whose targets may have any size.

    Fix:
        Bring the targets to 0 and 1: mask / 255, label - 1, (label + 1) / 2.

    Options:
        low: no target that is not below this is out of range.
        high: no target that is not above this is out of range.

    Source:
        https://docs.pytorch.org/docs/stable/generated/torch.nn.BCELoss.html
    """

    title = "{subject} is given targets outside of 0 to 1"
    likely_cause = "The targets are no probabilities: {observed}."
    fix = "Bring the targets to 0 and 1: mask / 255, label - 1, (label + 1) / 2."
    needs = loss_needs(*_LOSSES)

    def __init__(self, low: float = -0.5, high: float = 1.5) -> None:
        super().__init__()
        self.low = low
        self.high = high
        self._low, self._high = self.low, self.high
        self._first: dict[str, CallEvent] = {}
        self._extremes: dict[str, tuple[float, float]] = {}
        self._told: set[str] = set()

    def judge(self, event: Event) -> list[Violation]:
        call = as_loss(event, _LOSSES)
        if call is None or call.api in self._told or not _counts_all(call):
            return []
        target = given(call, "target")
        low, high = number(target, "min"), number(target, "max")
        if low is None or high is None:
            return []
        self.triggered += 1
        if low >= self._low and high <= self._high:
            return []
        before = self._extremes.get(call.api)
        if before is None:
            self._first[call.api], self._extremes[call.api] = call, (low, high)
            return []
        self._told.add(call.api)
        return [self._violation(self._first[call.api], min(low, before[0]), max(high, before[1]))]

    def _violation(self, call: CallEvent, low: float, high: float) -> Violation:
        return loss_violation(
            self.code,
            call,
            f"targets of {call.api.rpartition('.')[2]} are no probabilities",
            expected="targets between 0 and 1",
            observed=f"targets from {low:.3g} to {high:.3g}",
            cause=_cause(low, high),
        )


def _counts_all(call: CallEvent) -> bool:
    """Whether each target has its part in a loss that something is trained on."""
    result = tensor_summary(call.result)
    if result is not None and not result.requires_grad:
        return False
    if call.args.get("reduction", "mean") == "none" or call.args.get("reduce") is False:
        return False
    least = number(given(call, "weight"), "min")
    return call.args.get("weight") is None or (least is not None and least > 0)


def _cause(low: float, high: float) -> str:
    if low >= 0 and _BYTES[0] < high <= _BYTES[1]:
        return "A mask has the values of bytes: {observed}. Nothing divides it by 255."
    if (low, high) == (-1, 1):
        return "Labels are -1 and 1, as a hinge loss takes them, or pixels are normalized."
    if high == _CLASSES and low in (1, 2):
        return "Classes are counted from 1: {observed}."
    return ""
