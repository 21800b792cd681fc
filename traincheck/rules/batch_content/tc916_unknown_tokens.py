"""Text outside the vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

from traincheck.rules.shared.batches import BATCHES, BatchLeafRule
from traincheck.schema.events import BatchEvent
from traincheck.schema.findings import Violation
from traincheck.schema.values import TensorSummary


class UnknownTokens(BatchLeafRule, code="TC916", severity="info"):
    """unknown-tokens: many tokens are outside the vocabulary.

    What it checks:
        At most one in twenty tokens of a batch is the unknown token.

    Why it matters:
        Unknown text is lost before the model sees it. A vocabulary of another language, casing or
        tokenizer has this effect.

    Fires on:
        - More than 5 % of the non-padding input_ids are the unk_token_id of the model's
          configuration, in three consecutive batches.

    Stays quiet on:
        - Rare unknown tokens.
        - Models whose configuration has no unknown token.
        - Single batches.

    Fix:
        Use the tokenizer that belongs to the model, and inspect the text of some unknown tokens.

    Source:
        https://huggingface.co/docs/transformers/main/en/tokenizer_summary

    Options:
        share: share of tokens that may be unknown, in [0, 1].
    """

    title = "Many tokens of a batch are unknown"
    likely_cause = "The text may have been tokenized with the wrong vocabulary."
    fix = "Use the tokenizer that belongs to the model, and inspect the text of unknown tokens."
    needs = BATCHES

    def __init__(self, share: float = 0.05) -> None:
        super().__init__()
        self.share = share

    def judge(self, event: BatchEvent, path: str, tensor: TensorSummary) -> Sequence[Violation]:
        unknown = (event.tokens or {}).get("unknown")
        if unknown is None or not path.endswith("input_ids"):
            return ()
        self.triggered += 1
        if unknown <= self.share:
            return ()
        return self.again(
            event,
            path,
            expected=f"at most {self.share:.0%} of the tokens are unknown",
            observed=f"{unknown:.0%} of the tokens are unknown",
        )
