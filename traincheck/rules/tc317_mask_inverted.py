"""TC317: an attention mask leaves out the tokens and attends to the padding."""

from __future__ import annotations

from traincheck.rules._attention import ATTENTION, Pass, Passes, attention_violation
from traincheck.schema.apis import ATTENTION as SDPA
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event
from traincheck.schema.findings import CheckInfo, Violation
from traincheck.schema.values import TensorSummary, tensor_summary

_EXACT = 1e-6
_HALF = 0.5
_FEW = 0.02  # of positions; nearer to one half, right and wrong look the same
_CERTAIN = 3  # shares of padding that agree; a causal mask over padding may come to one by chance


class MaskInverted:
    """TC317 mask-inverted: True and False of an attention mask are exchanged.

    What it checks:
        The share of a boolean attn_mask that is False is the share of padding in the batch, not the
        share of tokens.

    Why it matters:
        scaled_dot_product_attention attends where the mask is True; MultiheadAttention and many
        others leave out where it is True. With the wrong one, tokens see nothing but padding.

    Fires on:
        A mask whose share of False is exactly the share of tokens, while the batch has padding. One
        that differs between queries: in three batches with other shares of padding, and none that
        says otherwise between them.

    Stays quiet on:
        Masks of tokens; masks that also are causal, or local; batches half of which is padding.

    Fix:
        Pass attn_mask=(attention_mask != 0), True where a token is.

    Source:
        https://github.com/lucidrains/x-transformers/issues/160, https://github.com/pytorch/pytorch/issues/92554
    """

    info = CheckInfo(
        check_id="TC317",
        kind="rule",
        code="TC317",
        severity="error",
        title="The attention mask in {subject} is inverted",
        likely_cause=(
            "attn_mask is True where padding is: {observed}. scaled_dot_product_attention attends "
            "where its mask is True."
        ),
        fix="Invert the mask: attn_mask is to be True where a token is.",
    )
    needs = ATTENTION | Needs(stats=frozenset({SDPA}))

    def monitor(self) -> Polarity:
        return Polarity()


class Polarity:
    """Compares what masks leave out with the padding of the batch."""

    def __init__(self) -> None:
        self.triggered = 0
        self._passes = Passes()
        self._agreed: set[float] = set()  # shares of padding, since a mask was right

    def observe(self, event: Event) -> list[Violation]:
        found = self._passes.observe(event)
        if found is None:
            return []
        padding = found.batch.tokens.get("padding", 0)
        if not padding or abs(padding - _HALF) < _FEW:
            return []
        masks = [mask for mask in (_mask(call, found) for call in found.calls) if mask is not None]
        if not masks:
            return []
        self.triggered += 1
        if any(abs(_left_out(mask) - (1 - padding)) > _EXACT for mask in masks):
            self._agreed.clear()
            return []
        self._agreed.add(padding)
        if len(self._agreed) < _CERTAIN and not any(map(_is_of_keys, masks)):
            return []
        left_out = _left_out(masks[0])
        observed = f"it leaves out {left_out:.1%} of positions, and {padding:.1%} are padding"
        return [
            attention_violation(
                "TC317",
                found,
                f"the mask of attention is inverted; {observed}",
                expected="the mask leaves padding out",
                observed=observed,
            )
        ]

    def finish(self) -> list[Violation]:
        return []


def _mask(call: CallEvent, found: Pass) -> TensorSummary | None:
    """The mask of a call, if it is one of the tokens of the batch whose numbers are known."""
    mask = tensor_summary(call.args.get("attn_mask"))
    if mask is None or mask.dtype != "bool" or not mask.shape or "zeros" not in (mask.stats or {}):
        return None
    if mask.shape[-1] != found.shape[1] or mask.shape[0] != found.shape[0]:
        return None
    return mask


def _left_out(mask: TensorSummary) -> float:
    """The share of positions that a mask leaves out."""
    return (mask.stats or {})["zeros"]


def _is_of_keys(mask: TensorSummary) -> bool:
    """Whether it is the same for all queries."""
    return all(size == 1 for size in mask.shape[1:-1])
