"""Padding that takes part in the result of a model that masks it."""

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


class PaddingVectorNotZero(ProbeRule, code="TC005"):
    """padding-vector-not-zero: the vector of the padding index takes part, and is never trained.

    What it checks:
        In a copy of the process, an embedding with a padding_idx gives zeros for padding. The loss
        of the program stays the same.

    Why it matters:
        The vector of a padding_idx gets no gradient. If it was overwritten with random numbers,
        each padding adds a constant that nothing has learned.

    Fires on:
        An initialization of the whole weight of an Embedding with padding_idx, where the result for
        padding is not masked.

    Stays quiet on:
        - Vectors of zeros.
        - Vectors that are masked afterwards.
        - Embeddings without a padding_idx.
        - Vectors that another layer holds too: a tied output layer, or the original of a copy that
          an adapter trains.

    Fix:
        Zero the vector after the initialization.

    Source:
        https://github.com/pytorch/pytorch/issues/6411
    """

    title = "The vector of the padding index is not zero, and is never trained"
    likely_cause = (
        "The embedding may have been initialized again after its padding vector had been set "
        "to zero."
    )
    fix = (
        "After the initialization: with torch.no_grad(): "
        "embedding.weight[embedding.padding_idx].zero_()."
    )
    experiment: ClassVar[str] = Experiments.PADDING_ROW

    def judged(self, event: ProbeEvent) -> Violation:
        numbers = event.numbers
        text = (
            f"zeroing the padding vector of {event.where or event.model} moves the loss from "
            f"{numbers.get('loss', 0.0):.4g} to {numbers.get('without', 0.0):.4g}; it gets no "
            "gradient"
        )
        return self.violation(
            event,
            subject=Subject(module=event.where or event.model),
            symptom=Symptom.INITIALIZATION,
            message="the vector of the padding index takes part in the loss",
            expected="the same loss without it",
            observed=text,
        )
