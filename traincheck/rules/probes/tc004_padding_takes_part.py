"""Padding takes part in the result of a model that masks it."""

from __future__ import annotations

from typing import ClassVar

from traincheck.rules.probes.probe_rule import ProbeRule, line_of
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.probes.event import ProbeEvent
from traincheck.schema.probes.names import Experiments


class PaddingTakesPart(ProbeRule, code="TC004"):
    """padding-takes-part: padding changes the results of a model that masks it.

    What it checks:
        In a copy of the process, the model runs in eval mode on a batch of the program. With a mask
        among the inputs, the content of masked positions is changed. Where the model makes a mask
        of the ids itself, samples run alone with and without their padding. The results for all
        other positions stay the same.

    Why it matters:
        A sample gets another result in a batch with longer ones. Attention that goes to padding is
        missing elsewhere, and scores depend on the batch size.

    Fires on:
        - Scores that are filled with a number near 0 instead of a large negative one.
        - A mask that is broadcast over queries, not over keys.
        - A mask that means the opposite, or that one of several layers does not get.

    Stays quiet on:
        - Models without a mask, such as bags of words.
        - Convolutions and recurrent layers, which let padding take part.
        - Results for padding itself.
        - Differences below 0.1 % of the largest value.

    Fix:
        Fill masked scores with float("-inf") or -1e9, and give the mask of keys the shape
        (batch, 1, 1, keys).

    Source:
        https://github.com/awslabs/gluonts/pull/1401,
        https://github.com/hyunwoongko/transformer/pull/40
    """

    title = "Padding takes part in the result of a model that masks it"
    likely_cause = (
        "The mask may not reach a layer, or is broadcast over queries instead of keys, or "
        "masked scores are not filled with a large negative number."
    )
    fix = (
        "Fill masked scores with float('-inf'), and give the mask of keys the shape (batch, 1, 1, "
        "keys): mask[:, None, None, :]."
    )
    experiment: ClassVar[str] = Experiments.PADDING

    def judged(self, event: ProbeEvent) -> Violation:
        change = event.numbers.get("change", 0.0)
        how = "cutting padding off" if event.detail.get("how") == "trimmed" else "other padding"
        text = f"{how} moved results for the rest by {change:.2g} of the largest value"
        operation = event.detail.get("operation", "").rpartition(".")[2]
        if operation:
            text += f", first in {operation}() of {event.where}{line_of(event)}"
        fill = event.detail.get("fill")
        if fill:
            text += f"; masked scores are set to {fill}, so padding keeps weight in attention"
        return self.violation(
            event,
            subject=Subject(module=event.where or event.model),
            symptom=Symptom.UNMASKED,
            message="padding takes part in the results",
            expected="results that do not depend on padding",
            observed=text,
        )
