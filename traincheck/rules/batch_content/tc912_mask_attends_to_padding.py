"""An attention mask that does not exclude padding."""

from __future__ import annotations

from collections.abc import Sequence

from traincheck.rules.shared.batches import BATCHES, BatchLeafRule
from traincheck.schema.events import BatchEvent
from traincheck.schema.findings import Violation
from traincheck.schema.values import TensorSummary


class MaskAttendsToPadding(BatchLeafRule, code="TC912", severity="info"):
    """mask-attends-to-padding: an attention mask does not exclude padding.

    What it checks:
        If rows of input_ids start or end with two or more padding ids, the attention_mask of the
        batch is zero there.

    Why it matters:
        Tokens attend to padding. The outputs of a row then depend on how long the other rows of its
        batch are. Some models are trained like this on purpose (e.g. image and text towers with
        fixed lengths), so this is only advice.

    Fires on:
        - A mask of ones beside padded rows, in three consecutive batches. The padding id is the
          pad_token_id of the model's configuration.

    Stays quiet on:
        - Masks that exclude padding.
        - Batches without a mask.
        - A padding id that is also the end token or the unknown token.
        - Models whose configuration has no padding id.

    Fix:
        Use attention_mask = (input_ids != pad_token_id), or the mask that the tokenizer returns.

    Source:
        https://huggingface.co/docs/transformers/main/en/pad_truncation
    """

    title = "The attention mask of a batch includes padding"
    likely_cause = "The mask may have been made before padding, or consist of ones."
    fix = "Build the mask as (input_ids != pad_token_id), or use the mask of the tokenizer."
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
            observed=f"{rows} of {tensor.shape[0]} rows have padding that the mask includes",
        )
