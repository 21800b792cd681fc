"""A model that predicts the next token sees later ones."""

from __future__ import annotations

from typing import ClassVar

from traincheck.rules.probes.probe_rule import ProbeRule, line_of
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.probes.event import ProbeEvent
from traincheck.schema.probes.names import Experiments


class LaterTokensSeen(ProbeRule, code="TC007"):
    """later-tokens-seen: a model that predicts the next token depends on later ones.

    What it checks:
        The targets of a loss are the tokens of the input one place further. In a copy of the
        process, the second half of each text is exchanged for that of another. The results for the
        first half stay the same.

    Why it matters:
        The model reads the answer. The loss falls far below what is possible, and generation, which
        has no later tokens, is poor.

    Fires on:
        - Attention without a causal mask, or with one that is shifted.
        - Norms, means or convolutions over the sequence.

    Stays quiet on:
        - Other targets, such as masked tokens, classes, or the same tokens.
        - Differences below 0.1 % of the largest value.

    Fix:
        Mask later positions: is_causal=True. Normalize over features, not over the sequence.

    Source:
        https://docs.pytorch.org/docs/stable/generated/torch.nn.Transformer.html
    """

    title = "A model that predicts the next token sees later tokens"
    likely_cause = (
        "The causal mask may be missing, or a convolution, norm or pooling goes over the sequence."
    )
    fix = (
        "Mask later positions in attention (is_causal=True), pad convolutions on the left, and "
        "normalize over features, not over the sequence."
    )
    experiment: ClassVar[str] = Experiments.LATER_TOKENS

    def judged(self, event: ProbeEvent) -> Violation:
        change = event.numbers.get("change", 0.0)
        text = (
            "changing the second half of each text moved results for the first half by "
            f"{change:.2g} of the largest value"
        )
        operation = event.detail.get("operation", "").rpartition(".")[2]
        if operation:
            text += f", first in {operation}() of {event.where}{line_of(event)}"
        return self.violation(
            event,
            subject=Subject(module=event.where or event.model),
            symptom=Symptom.UNMASKED,
            message="results depend on later tokens",
            expected="results that depend on earlier tokens only",
            observed=text,
        )
