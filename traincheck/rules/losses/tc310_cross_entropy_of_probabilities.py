"""Passes probabilities instead of logits to cross_entropy."""

from __future__ import annotations

from traincheck.readings.losses import CROSS_ENTROPY, are_distributions, as_loss, given, loss_needs
from traincheck.rules.base.rule import BuiltInRule
from traincheck.rules.shared.losses import loss_violation
from traincheck.schema.events import Event
from traincheck.schema.findings import Violation


class CrossEntropyOfProbabilities(BuiltInRule, code="TC310", severity="error"):
    """cross-entropy-of-probabilities: softmax is applied before cross_entropy does it again.

    What it checks:
        Rows of the input of cross_entropy are not probabilities, i.e. numbers of at least zero
        whose sum is one.

    Why it matters:
        cross_entropy applies log_softmax internally. After another softmax, the loss cannot fall
        below a floor (1.461 for ten classes), gradients are small, and training is slow and poor.

    Fires on:
        - A model that ends with Softmax, trained with CrossEntropyLoss.

    Stays quiet on:
        - Logits.
        - Outputs of log_softmax, which a second log_softmax does not change.
        - Probabilities as target.
        - Losses that are computed without gradients.

    Fix:
        Remove the softmax in front of the loss. Apply it only where probabilities are shown.

    Source:
        https://github.com/Lightning-Universe/lightning-bolts/issues/654
    """

    title = "cross_entropy is given probabilities, not logits"
    likely_cause = (
        "Softmax may have been applied to the input of cross_entropy, which applies it again: "
        "from step {step} on, each row sums to one."
    )
    fix = "Pass the raw outputs of the last layer to cross_entropy. Remove the softmax."
    needs = loss_needs(CROSS_ENTROPY)

    def observe(self, event: Event) -> list[Violation]:
        call = as_loss(event, (CROSS_ENTROPY,))
        if call is None:
            return []
        self.triggered += 1
        logits = given(call, "input")
        if logits is None or not are_distributions(logits):
            return []
        return [
            loss_violation(
                self.code,
                call,
                "softmax comes before cross_entropy, which expects logits",
                expected="raw logits (not normalized)",
                observed=f"{logits.shape[0]} rows of nonnegative numbers, each with sum 1",
            )
        ]
