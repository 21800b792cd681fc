"""A model receives an attention mask, but its attention does not use it."""

from __future__ import annotations

from traincheck.rules.attention.calls import ATTENTION, Passes, attention_violation, mask_passed
from traincheck.rules.base.rule import BuiltInRule
from traincheck.schema.events import Event
from traincheck.schema.findings import Violation


class MaskNotUsed(BuiltInRule, code="TC316", severity="error"):
    """mask-not-used: an attention mask never reaches the attention.

    What it checks:
        If a model receives an attention mask that excludes positions, at least one of its calls of
        scaled_dot_product_attention gets a mask.

    Why it matters:
        Tokens attend to padding. The outputs of a row then depend on how long the other rows of its
        batch are.

    Fires on:
        - A block that takes a mask and does not pass it on.
        - A causal model with left padding that gets only is_causal.

    Stays quiet on:
        - Masks without padding.
        - Causal attention with right padding, which no token can see.
        - Models that do not receive the mask, or that compute attention in another way.

    Fix:
        Pass the mask to scaled_dot_product_attention as attn_mask, in a shape that broadcasts to
        (batch, heads, queries, keys).

    Source:
        https://github.com/huggingface/diffusers/issues/8886, https://github.com/pacman100/LLM-Workshop/issues/1
    """

    title = "The attention mask given to {subject} does not reach its attention"
    likely_cause = "The mask is dropped inside the model: {observed}. Tokens attend to padding."
    fix = (
        "Pass the mask to scaled_dot_product_attention as attn_mask (True or 0.0: attend; "
        "False or -inf: exclude)."
    )
    needs = ATTENTION

    def __init__(self) -> None:
        super().__init__()
        self._passes = Passes()

    def observe(self, event: Event) -> list[Violation]:
        found = self._passes.observe(event)
        if found is None:
            return []
        padding = found.batch.tokens.get("padding", 0)
        name = mask_passed(found)
        if not padding or name is None:
            return []
        self.triggered += 1
        is_hidden = found.is_causal and not found.batch.tokens.get("left_padded")
        if not found.is_unmasked or is_hidden:
            return []
        observed = "attn_mask is None in every call of scaled_dot_product_attention"
        return [
            attention_violation(
                self.code,
                found,
                (
                    f"{found.root.module} receives a mask ({name}) that excludes {padding:.0%} of "
                    f"the positions, but {observed}"
                ),
                expected="attention gets the mask",
                observed=observed,
            )
        ]
