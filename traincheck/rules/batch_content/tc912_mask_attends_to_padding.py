"""An attention mask that does not leave out padding."""

from __future__ import annotations

from collections.abc import Sequence

from traincheck.rules.shared.batches import BATCHES, BatchLeafRule
from traincheck.schema.events import BatchEvent
from traincheck.schema.findings import Violation
from traincheck.schema.values import TensorSummary


class MaskAttendsToPadding(BatchLeafRule, code="TC912", severity="info"):
    """mask-attends-to-padding: an attention mask that does not leave out padding.

    What it checks:
        Where rows of input_ids begin or end with two or more padding ids, the attention_mask of the
        batch is zero there.

    Why it matters:
        Tokens attend to padding. Outputs of a row then depend on how long the other rows of its
        batch are. Some models are trained so on purpose, as image and text towers with fixed
        lengths are: therefore this is advice.

    Fires on:
        A mask of ones beside padded rows, in three batches in a row; the padding id is the
        pad_token_id of the model's configuration.

    Stays quiet on:
        Masks that leave padding out; batches without a mask; a padding id that is the end token or
        the unknown one as well; models whose configuration names no padding id.

    Fix:
        attention_mask = (input_ids != pad_token_id), or take the mask that the tokenizer gives.

    Source:
        https://huggingface.co/docs/transformers/main/en/pad_truncation
    """

    title = "The attention mask of a batch attends to padding"
    likely_cause = "The mask was made before the padding, or is made of ones."
    fix = "Build the mask as (input_ids != pad_token_id), or take the one the tokenizer gives."
    needs = BATCHES

    def judge(self, event: BatchEvent, path: str, tensor: TensorSummary) -> Sequence[Violation]:
        rows = (event.tokens or {}).get("attended_padding")
        if rows is None or not path.endswith(".input_ids"):
            return ()
        self.triggered += 1
        if rows == 0:
            return ()
        return self.again(
            event,
            path,
            expected="the attention mask is zero at padding",
            observed=f"{rows} of {tensor.shape[0]} rows have padding that is attended to",
        )
