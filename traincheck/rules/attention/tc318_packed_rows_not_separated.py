"""Sequences packed into one row attend to each other."""

from __future__ import annotations

from traincheck.rules.attention.calls import ATTENTION, Passes, attention_violation
from traincheck.rules.base.rule import BuiltInRule
from traincheck.schema.events import Event
from traincheck.schema.findings import Violation


class PackedRowsNotSeparated(BuiltInRule, code="TC318", severity="error"):
    """packed-rows-not-separated: attention is not separated between sequences that share a row.

    What it checks:
        If position_ids restart within a row, calls of scaled_dot_product_attention get a mask that
        can separate the sequences of the row.

    Why it matters:
        Tokens of one document attend to earlier documents in the same row. The positions make these
        look close.

    Fires on:
        - A batch of packed sequences for which attention gets no mask, or only is_causal.

    Stays quiet on:
        - A block-diagonal mask.
        - Positions that only increase.
        - Attention computed in another way, which may receive the lengths.

    Fix:
        Build a block-diagonal mask from position_ids, or use variable-length attention.

    Source:
        https://github.com/huggingface/transformers/pull/46634, https://github.com/areal-project/AReaL/issues/1442
    """

    title = "Packed sequences in {subject} attend to each other"
    likely_cause = (
        "Several sequences share a row, but {observed}. A token can attend to the sequences "
        "before its own."
    )
    fix = "Pass a block-diagonal mask to attention, or the lengths of the packed sequences."
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
                f"positions restart at 0 within {rows} rows of the batch, but {observed}",
                expected="a mask that separates packed sequences",
                observed=observed,
            )
        ]
