"""A model takes an attention mask, and attends to padding all the same."""

from __future__ import annotations

from traincheck.rules.attention.calls import ATTENTION, Passes, attention_violation, mask_passed
from traincheck.rules.base.rule import BuiltInRule
from traincheck.schema.events import Event
from traincheck.schema.findings import Violation


class MaskNotUsed(BuiltInRule, code="TC316", severity="error"):
    """mask-not-used: an attention mask never reaches the attention.

    What it checks:
        Where a model is given an attention mask that leaves positions out, some of its calls of
        scaled_dot_product_attention get a mask.

    Why it matters:
        Tokens attend to padding. Outputs of a row then depend on how long the other rows of its
        batch are.

    Fires on:
        A block that takes a mask and does not hand it on; a causal model with padding in front of
        the tokens, of which only is_causal is passed.

    Stays quiet on:
        Masks without padding; causal attention with the padding behind the tokens, which no token
        can see; models that are not given the mask, or that compute attention by other means.

    Fix:
        Pass the mask to scaled_dot_product_attention as attn_mask, in a shape that broadcasts to
        (batch, heads, queries, keys).

    Source:
        https://github.com/huggingface/diffusers/issues/8886, https://github.com/pacman100/LLM-Workshop/issues/1
    """

    title = "The attention mask given to {subject} does not reach its attention"
    likely_cause = "The mask is dropped on its way: {observed}. Tokens attend to padding."
    fix = (
        "Hand the mask on to scaled_dot_product_attention as attn_mask (True or 0.0: attend; "
        "False or -inf: leave out)."
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
                    f"{found.root.module} is given a mask ({name}) that leaves {padding:.0%} of "
                    f"positions out, but {observed}"
                ),
                expected="attention gets the mask",
                observed=observed,
            )
        ]
