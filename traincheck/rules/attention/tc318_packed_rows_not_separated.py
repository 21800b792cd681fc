"""Sequences packed into one row attend to each other."""

from __future__ import annotations

from traincheck.rules.attention.calls import ATTENTION, Passes, attention_violation
from traincheck.rules.base.rule import BuiltInRule
from traincheck.schema.events import Event
from traincheck.schema.findings import Violation


class PackedRowsNotSeparated(BuiltInRule, code="TC318", severity="error"):
    """packed-rows-not-separated: nothing separates sequences that share a row.

    What it checks:
        Where position_ids begin anew within a row, calls of scaled_dot_product_attention get a mask
        that can keep its sequences apart.

    Why it matters:
        Tokens of one document attend to the documents before it in the same row, with positions
        that say they are near.

    Fires on:
        A batch of packed sequences for which attention gets no mask, or is_causal alone.

    Stays quiet on:
        A block-diagonal mask; positions that only rise; attention by other means, which may be
        given the lengths.

    Fix:
        Build a block-diagonal mask from position_ids, or use attention for variable lengths.

    Source:
        https://github.com/huggingface/transformers/pull/46634, https://github.com/areal-project/AReaL/issues/1442
    """

    title = "Packed sequences in {subject} attend to each other"
    likely_cause = (
        "Several sequences share a row, but {observed}: nothing keeps a token from attending "
        "to the sequences before its own."
    )
    fix = "Give attention a block-diagonal mask, or the lengths of the packed sequences."
    needs = ATTENTION

    def __init__(self) -> None:
        super().__init__()
        self._passes = Passes()

    def observe(self, event: Event) -> list[Violation]:
        found = self._passes.observe(event)
        rows = 0 if found is None else found.batch.tokens.get("resets", 0)
        if found is None or not rows:
            return []
        self.triggered += 1
        if not found.is_unmasked:
            return []
        observed = "attn_mask is None in every call of attention"
        return [
            attention_violation(
                self.code,
                found,
                f"positions start again at 0 within {rows} rows of the batch, but {observed}",
                expected="a mask that keeps packed sequences apart",
                observed=observed,
            )
        ]
