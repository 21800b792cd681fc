"""Attention masks that are not used, or are inverted."""

from __future__ import annotations

from traincheck.readings import recorded
from traincheck.readings.losses import given
from traincheck.readings.provider import RunStates
from traincheck.readings.scalars import excluded
from traincheck.rules.attention.calls import (
    ATTENTION,
    AttentionPasses,
    Pass,
    attention_violation,
    mask_passed,
)
from traincheck.rules.base.rule import BuiltInRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import ATTENTION as SDPA
from traincheck.schema.torch_api import EMBEDDING, MULTI_HEAD
from traincheck.schema.values import TensorSummary, tensor_summary


class MaskNotUsed(BuiltInRule, code="TC316", severity="error"):
    """mask-not-used: an attention mask never reaches the attention.

    What it checks:
        If a model receives an attention mask that excludes positions, at least one of its calls of
        scaled_dot_product_attention gets a mask.

    Why it matters:
        Tokens attend to padding. The outputs of a row then depend on how long the other rows of its
        batch are.

    Fires on:
        - A block that takes a mask and does not pass it on.
        - A causal model with left padding that gets only is_causal.

    Stays quiet on:
        - Masks without padding.
        - Causal attention with right padding, which no token can see.
        - Models that do not receive the mask, or that compute attention in another way.

    Fix:
        Pass the mask to scaled_dot_product_attention as attn_mask, in a shape that broadcasts to
        (batch, heads, queries, keys).

    Source:
        https://github.com/huggingface/diffusers/issues/8886, https://github.com/pacman100/LLM-Workshop/issues/1
    """

    title = "The attention mask given to {subject} does not reach its attention"
    likely_cause = "The mask is dropped inside the model: {observed}. Tokens attend to padding."
    fix = (
        "Pass the mask to scaled_dot_product_attention as attn_mask (True or 0.0: attend; "
        "False or -inf: exclude)."
    )
    needs = ATTENTION

    uses = (AttentionPasses,)

    def bind(self, run_states: RunStates) -> None:
        self._passes = run_states.of(AttentionPasses)

    def observe(self, event: Event) -> list[Violation]:
        found = self._passes.ended
        if found is None:
            return []
        padding = recorded.padding(found.batch)
        name = mask_passed(found)
        if not padding or name is None:
            return []
        self.triggered += 1
        is_hidden = found.is_causal and not found.batch.tokens.get("left_padded")
        if not found.is_unmasked or is_hidden:
            return []
        observed = "attn_mask is None in every call of scaled_dot_product_attention"
        return [
            attention_violation(
                self.code,
                found,
                (
                    f"{found.root.module} receives a mask ({name}) that excludes {padding:.0%} of "
                    f"the positions, but {observed}"
                ),
                expected="attention gets the mask",
                observed=observed,
            )
        ]


_EXACT = 1e-6
_HALF = 0.5
_FEW = 0.02  # of positions; closer to one half, a correct and an inverted mask look the same
_PROOF = 2  # calls of a model
_MASKS = {SDPA: ("attn_mask",), MULTI_HEAD: ("key_padding_mask", "attn_mask")}
_MEANS = {
    SDPA: "scaled_dot_product_attention attends where a boolean mask is True.",
    MULTI_HEAD: "nn.MultiheadAttention and nn.Transformer ignore positions where it is True.",
}
_FIXES = {
    SDPA: "Invert the mask: attn_mask must be True where a token is.",
    MULTI_HEAD: "Pass (tokens == padding): the key mask must be True where there is no token.",
}
_CERTAIN = 3  # shares of padding that agree; a causal mask over padding can match one by chance


class MaskInverted(BuiltInRule, code="TC317", severity="error"):
    """mask-inverted: True and False of an attention mask are swapped.

    What it checks:
        - The share of False in a boolean attn_mask equals the share of padding in the batch, not
          the share of tokens.
        - A mask over keys does not let attention see the padding alone.

    Why it matters:
        scaled_dot_product_attention attends where the mask is True. MultiheadAttention and many
        others ignore positions where it is True. With the wrong convention, tokens see nothing but
        padding.

    Fires on:
        - A key mask whose share of False is exactly the share of tokens, in a batch with padding.
        - A mask that differs between queries and has this share in three batches with different
          shares of padding, without a counterexample between them.
        - Two calls of scaled_dot_product_attention or nn.MultiheadAttention with a mask (e.g.
          key_padding_mask) that keeps only the padding. The padding is one token that fills the
          ends of the rows, by different lengths.

    Stays quiet on:
        - Masks that keep the tokens.
        - Masks that are also causal, or local.
        - Batches that are half padding, if the tokens are not known.
        - Tokens on a device.

    Fix:
        - For scaled_dot_product_attention, pass attn_mask=(attention_mask != 0): True where a token
          is.
        - For nn.MultiheadAttention, pass key_padding_mask=(tokens == padding): True where there is
          no token.

    Source:
        https://github.com/lucidrains/x-transformers/issues/160, https://github.com/pytorch/pytorch/issues/92554
    """

    title = "The attention mask in {subject} is inverted"
    likely_cause = (
        "attn_mask is True where padding is: {observed}. scaled_dot_product_attention attends "
        "where its mask is True."
    )
    fix = _FIXES[SDPA]
    needs = ATTENTION | Needs(
        calls=frozenset({EMBEDDING, MULTI_HEAD}), stats=frozenset({EMBEDDING, MULTI_HEAD, SDPA})
    )

    uses = (AttentionPasses,)

    def __init__(self) -> None:
        super().__init__()
        self._agreed: set[float] = set()  # shares of padding, since the last correct mask
        self._hiding: list[CallEvent] = []  # of the open model call: their mask hides all tokens
        self._first: Violation | None = None
        self._found = 0

    def bind(self, run_states: RunStates) -> None:
        self._passes = run_states.of(AttentionPasses)

    def observe(self, event: Event) -> list[Violation]:
        hidden: list[Violation] = []
        if isinstance(event, CallEvent):
            if event.api in _MASKS:
                inverted = [recorded.inverted(given(event, name)) for name in _MASKS[event.api]]
                self.triggered += any(one is not None for one in inverted)
                if any(inverted):
                    self._hiding.append(event)
            elif event.root:
                calls, self._hiding = self._hiding, []
                if not calls:
                    hidden = []
                else:
                    self._first = self._first or self._hides_all(event, calls[0])
                    self._found += 1
                    hidden = [self._first] if self._found == _PROOF else []
        found = self._passes.ended
        return hidden if found is None else hidden + self._compare(found)

    def _compare(self, found: Pass) -> list[Violation]:
        padding = recorded.padding(found.batch)
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
        # Whether a mask is the same for all queries
        is_of_keys = any(all(size == 1 for size in mask.shape[1:-1]) for mask in masks)
        if len(self._agreed) < _CERTAIN and not is_of_keys:
            return []
        left_out = _left_out(masks[0])
        observed = f"it excludes {left_out:.1%} of positions, and {padding:.1%} are padding"
        return [
            attention_violation(
                self.code,
                found,
                f"the attention mask is inverted; {observed}",
                expected="the mask excludes the padding",
                observed=observed,
            )
        ]

    def _hides_all(self, root: CallEvent, call: CallEvent) -> Violation:
        name = next(n for n in _MASKS[call.api] if recorded.inverted(given(call, n)))
        observed = f"{name} excludes all tokens and none of the padding"
        return self.violation(
            root,
            subject=Subject(api=call.api, module=root.module),
            symptom=Symptom.UNMASKED,
            message=f"the attention mask is inverted; {observed}",
            expected="the mask excludes the padding",
            observed=observed,
            evidence=(call, root),
            likely_cause=f"True and False are swapped: {observed}. {_MEANS[call.api]}",
            fix=_FIXES[call.api],
        )


def _mask(call: CallEvent, found: Pass) -> TensorSummary | None:
    """The mask of a call, if it covers the tokens of the batch and its statistics are known."""
    mask = tensor_summary(call.args.get("attn_mask"))
    if mask is None or excluded(call) is None:
        return None
    if mask.shape[-1] != found.shape[1] or mask.shape[0] != found.shape[0]:
        return None
    return mask


def _left_out(mask: TensorSummary) -> float:
    """The share of positions that a mask excludes."""
    return recorded.zeros(mask) or 0.0
