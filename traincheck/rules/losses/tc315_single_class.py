"""Cross entropy is taken over a single class."""

from __future__ import annotations

from traincheck.readings.losses import CROSS_ENTROPY, as_loss, given, loss_needs
from traincheck.rules.base.rule import BuiltInRule
from traincheck.rules.shared.losses import loss_violation
from traincheck.schema.events import Event
from traincheck.schema.findings import Violation


class SingleClass(BuiltInRule, code="TC315", severity="error"):
    """single-class: cross_entropy is given one output for each sample.

    What it checks:
        The class dim of the input of cross_entropy has more than one class.

    Why it matters:
        The softmax over one number is always one, so the loss and all gradients are zero.

    Fires on:
        - A model with one output for a yes-or-no question, trained with CrossEntropyLoss.

    Stays quiet on:
        - Two or more outputs.
        - Other losses.
        - Losses without gradients.

    Fix:
        Use binary_cross_entropy_with_logits, or two outputs.

    Source:
        https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html
    """

    title = "cross_entropy over a single class is always zero"
    likely_cause = "The last layer has one output, and softmax over one output is always one."
    fix = "Use binary_cross_entropy_with_logits for one output, or give the model two outputs."
    needs = loss_needs(CROSS_ENTROPY, numbers=False)

    def observe(self, event: Event) -> list[Violation]:
        call = as_loss(event, (CROSS_ENTROPY,))
        logits = None if call is None else given(call, "input")
        if call is None or logits is None or not logits.shape:
            return []
        self.triggered += 1
        classes = logits.shape[1] if len(logits.shape) > 1 else logits.shape[0]
        if classes != 1:
            return []
        return [
            loss_violation(
                self.code,
                call,
                "cross_entropy has only one class, so it is always zero",
                expected="at least two classes",
                observed=f"input {list(logits.shape)}",
            )
        ]
