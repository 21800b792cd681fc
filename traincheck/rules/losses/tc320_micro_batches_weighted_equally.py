"""Micro-batches with different numbers of labels get the same weight."""

from __future__ import annotations

import math

from traincheck.readings.losses import CROSS_ENTROPY, as_loss, given, loss_needs, number
from traincheck.rules.base.rule import BuiltInRule
from traincheck.rules.shared.losses import loss_violation
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event, StepEvent
from traincheck.schema.findings import Violation
from traincheck.schema.torch_api import IGNORED_LABEL, Families


class MicroBatchesWeightedEqually(
    BuiltInRule, code="TC320", aliases=("micro-batches-weighted-alike",)
):
    """micro-batches-weighted-equally: the mean over labels is taken per micro-batch.

    What it checks:
        If gradients of several micro-batches are accumulated, each with a mean over its valid
        labels, all have about the same number of valid labels.

    Why it matters:
        A label in a short micro-batch weighs more than one in a long micro-batch. The gradient
        differs from that of the large batch, and the difference grows with the spread of lengths.

    Fires on:
        - cross_entropy with reduction="mean", accumulated over micro-batches of tokens of which one
          has several times as many valid labels as another.

    Stays quiet on:
        - Losses that are summed and divided by the number of all labels.
        - Micro-batches with about the same number of labels.
        - Labels without ignore_index, e.g. in classification.

    Fix:
        Use reduction="sum" and divide by the number of valid labels of all micro-batches.

    Source:
        https://github.com/huggingface/transformers/pull/34191, https://github.com/huggingface/trl/issues/2175

    Options:
        - ratio: greatest number of valid labels of a micro-batch divided by the least, in one step.
    """

    title = "Micro-batches of different length get the same weight"
    likely_cause = (
        "{subject} takes the mean over the valid labels of each micro-batch, and the means are "
        "added up: {observed}."
    )
    fix = 'Use reduction="sum" and divide by the valid labels of all micro-batches together.'
    needs = loss_needs(CROSS_ENTROPY) | Needs(calls=frozenset({Families.BACKWARD}))

    def __init__(self, ratio: float = 2.0) -> None:
        super().__init__()
        self._ratio = ratio
        self._waiting: list[tuple[CallEvent, int]] = []  # losses since the last backward
        self._counts: list[tuple[CallEvent, int]] = []  # one per micro-batch

    def observe(self, event: Event) -> list[Violation]:
        if isinstance(event, StepEvent):
            counts, self._counts, self._waiting = self._counts, [], []
            return self._judge(event, counts)
        call = as_loss(event, (CROSS_ENTROPY,))
        if call is not None:
            valid = _valid(call)
            if valid is not None:
                self._waiting.append((call, valid))
        elif isinstance(event, CallEvent) and (event.family or event.api) == Families.BACKWARD:
            if len(self._waiting) == 1:
                self._counts += self._waiting
            self._waiting = []
        return []

    def _judge(self, step: StepEvent, counts: list[tuple[CallEvent, int]]) -> list[Violation]:
        backwards = step.counters.get("backward", 0)
        if len(counts) < 2 or len(counts) != backwards:  # noqa: PLR2004  # no accumulation
            return []
        if step.counters.get("optimizer_step", 0) != 1 or not step.complete:
            return []
        self.triggered += 1
        least, most = (pick(n for _, n in counts) for pick in (min, max))
        if not least or most < self._ratio * least:
            return []
        observed = f"{least} to {most} valid labels in the {len(counts)} micro-batches of a step"
        return [
            loss_violation(
                self.code,
                counts[0][0],
                f"means over {observed} are added with the same weight",
                expected="each label has the same weight",
                observed=observed,
            )
        ]


def _valid(call: CallEvent) -> int | None:
    """Number of labels in a mean if some are ignored, or None if it is unknown."""
    if call.args.get("reduction", "mean") != "mean":
        return None
    if call.args.get("ignore_index", IGNORED_LABEL) != IGNORED_LABEL:
        return None
    target = given(call, "target")
    ignored = number(target, "ignored")
    if target is None or ignored is None:
        return None
    return round((1 - ignored) * math.prod(target.shape))
