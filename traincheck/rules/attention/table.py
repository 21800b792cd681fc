"""Rules about attention, by code."""

from __future__ import annotations

from traincheck.rules.attention.tc316_mask_not_used import MaskNotUsed
from traincheck.rules.attention.tc317_mask_inverted import MaskInverted
from traincheck.rules.attention.tc318_packed_rows_not_separated import PackedRowsNotSeparated
from traincheck.rules.attention.tc324_missing_causal_mask import MissingCausalMask
from traincheck.rules.attention.tc337_softmax_over_queries import SoftmaxOverQueries
from traincheck.schema.protocols import Rule

RULES: tuple[Rule, ...] = (
    MaskNotUsed(),
    MaskInverted(),
    PackedRowsNotSeparated(),
    MissingCausalMask(),
    SoftmaxOverQueries(),
)
