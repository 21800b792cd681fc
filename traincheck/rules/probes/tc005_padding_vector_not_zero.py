"""The vector of a padding index is not zero, and the loss depends on it."""

from __future__ import annotations

from typing import ClassVar

from traincheck.rules.probes.probe_rule import ProbeRule
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.probes.event import ProbeEvent
from traincheck.schema.probes.names import Experiments


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
