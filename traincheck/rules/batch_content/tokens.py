"""Tokens, masks and labels of batches: padding, unknown tokens, negative ids."""

from __future__ import annotations

from collections.abc import Sequence

from traincheck.readings import recorded
from traincheck.readings.losses import number
from traincheck.readings.quantities import QUANTITIES
from traincheck.readings.recorded import Numbers
from traincheck.rules.shared.batches import BATCHES, BatchLeafRule
from traincheck.schema.events import BatchEvent
from traincheck.schema.findings import Violation
from traincheck.schema.torch_api import IGNORED_LABEL
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
    fix = QUANTITIES[Numbers.PADDING].fix
    needs = BATCHES

    def judge(self, event: BatchEvent, path: str, tensor: TensorSummary) -> Sequence[Violation]:
        rows = recorded.attended_padding(event)
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
        share = recorded.padding(event)
        if share is None or not path.endswith("input_ids"):
            return ()
        self.triggered += 1
        if share <= self._share:
            return ()
        return self.again(
            event, path, expected="most positions are tokens", observed=f"{share:.0%} is padding"
        )


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


_IGNORED = frozenset({IGNORED_LABEL, -1})


class NegativeIndex(BatchLeafRule, code="TC921", severity="info"):
    """negative-index: ids or labels contain negative numbers.

    What it checks:
        Integers in a batch are not negative, except for the two values that mean "ignore".

    Why it matters:
        A negative index silently counts from the end wherever Python or gather() does the indexing.

    Fires on:
        - Labels or ids that go down to -7 in three consecutive batches.

    Stays quiet on:
        - -100 and -1, the usual values for ignored positions.
        - Floating-point targets.

    Fix:
        Find a shift (labels from 1 to n minus 2), an overflow, or a code for missing categories.

    Source:
        https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html
    """

    title = "Integers in a batch are negative"
    likely_cause = (
        "The values may have an offset, overflow a small integer type, or contain a code for "
        "missing values."
    )
    fix = "Map the values to 0..n-1, or to -100 where they should be ignored."
    needs = BATCHES

    def judge(self, event: BatchEvent, path: str, tensor: TensorSummary) -> Sequence[Violation]:
        low = number(tensor, "min")
        if low is None or not tensor.dtype.startswith("int"):
            return ()
        self.triggered += 1
        if low >= 0 or low in _IGNORED:
            return ()
        return self.again(
            event,
            path,
            expected="ids and labels of 0 or more (or -100, -1: ignored)",
            observed=f"the smallest is {low:g}",
        )
