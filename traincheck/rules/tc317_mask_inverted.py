"""TC317: an attention mask leaves out the tokens and attends to the padding."""

from __future__ import annotations

from traincheck.rules._attention import ATTENTION, Pass, Passes, attention_violation
from traincheck.schema.apis import ATTENTION as SDPA
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event
from traincheck.schema.findings import CheckInfo, Violation
from traincheck.schema.values import tensor_summary

_EXACT = 1e-6
_HALF = 0.5
_FEW = 0.02  # of positions; nearer to one half, right and wrong look the same


class MaskInverted:
    """TC317 mask-inverted: True and False of an attention mask are exchanged.

    What it checks:
        The share of a boolean attn_mask that is False is the share of padding in the batch, not the
        share of tokens.

    Why it matters:
        scaled_dot_product_attention attends where the mask is True; MultiheadAttention and many
        others leave out where it is True. With the wrong one, tokens see nothing but padding.

    Fires on:
        A mask whose share of False is exactly the share of tokens, while the batch has padding.

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

    def observe(self, event: Event) -> list[Violation]:
        found = self._passes.observe(event)
        if found is None:
            return []
        padding = found.batch.tokens.get("padding", 0)
        if not padding or abs(padding - _HALF) < _FEW:
            return []
        shares = [s for s in (_left_out(call, found) for call in found.calls) if s is not None]
        if not shares:
            return []
        self.triggered += 1
        if any(abs(share - (1 - padding)) > _EXACT for share in shares):
            return []
        observed = f"it leaves out {shares[0]:.1%} of positions, and {padding:.1%} are padding"
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


def _left_out(call: CallEvent, found: Pass) -> float | None:
    """The share that the mask of a call leaves out, if it is a mask of the tokens of the batch."""
    mask = tensor_summary(call.args.get("attn_mask"))
    if mask is None or mask.dtype != "bool" or mask.stats is None or not mask.shape:
        return None
    if mask.shape[-1] != found.shape[1] or mask.shape[0] != found.shape[0]:
        return None
    return mask.stats.get("zeros")
