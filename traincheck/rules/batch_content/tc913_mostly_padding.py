"""Batches that are mostly padding."""

from __future__ import annotations

from collections.abc import Sequence

from traincheck.rules.shared.batches import BATCHES, BatchLeafRule
from traincheck.schema.events import BatchEvent
from traincheck.schema.findings import Violation
from traincheck.schema.values import TensorSummary


class MostlyPadding(BatchLeafRule, code="TC913", severity="info"):
    """mostly-padding: batches consist mostly of padding.

    What it checks:
        At most half of the positions of a batch of tokens are padding.

    Why it matters:
        Padding costs as much to compute as text.

    Fires on:
        - An attention mask that excludes more than half of the positions, in three consecutive
          batches.

    Stays quiet on:
        - Batches without a mask.
        - Single batches.

    Fix:
        Pad to the longest sample of the batch instead of a fixed length, group samples by length,
        or pack them.

    Source:
        https://huggingface.co/docs/transformers/main/en/pad_truncation

    Options:
        share: share of positions that may be padding, in [0, 1].
    """

    title = "Batches consist mostly of padding"
    likely_cause = "Samples may be padded to a fixed length."
    fix = "Pad to the longest sample of a batch, or group samples by length."
    needs = BATCHES

    def __init__(self, share: float = 0.5) -> None:
        super().__init__()
        self._share = share

    def judge(self, event: BatchEvent, path: str, tensor: TensorSummary) -> Sequence[Violation]:
        share = (event.tokens or {}).get("padding")
        if share is None or not path.endswith("input_ids"):
            return ()
        self.triggered += 1
        if share <= self._share:
            return ()
        return self.again(
            event, path, expected="most positions are tokens", observed=f"{share:.0%} is padding"
        )
