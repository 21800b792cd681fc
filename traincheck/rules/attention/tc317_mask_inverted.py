"""An attention mask leaves out the tokens and attends to the padding."""

from __future__ import annotations

from traincheck.facts.losses import given, number
from traincheck.rules.attention.calls import ATTENTION, Pass, Passes, attention_violation
from traincheck.rules.base.rule import BuiltInRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import ATTENTION as SDPA
from traincheck.schema.torch_api import EMBEDDING, MULTI_HEAD
from traincheck.schema.values import TensorSummary, tensor_summary

_EXACT = 1e-6
_HALF = 0.5
_FEW = 0.02  # of positions; nearer to one half, right and wrong look the same
_PROOF = 2  # calls of a model
_MASKS = {SDPA: ("attn_mask",), MULTI_HEAD: ("key_padding_mask", "attn_mask")}
_MEANS = {
    SDPA: "scaled_dot_product_attention attends where a boolean mask is True.",
    MULTI_HEAD: "nn.MultiheadAttention and nn.Transformer leave out where a boolean mask is True.",
}
_FIXES = {
    SDPA: "Invert the mask: attn_mask is to be True where a token is.",
    MULTI_HEAD: "Pass (tokens == padding): the mask of keys is to be True where no token is.",
}
_CERTAIN = 3  # shares of padding that agree; a causal mask over padding may come to one by chance


class MaskInverted(BuiltInRule, code="TC317", severity="error"):
    """mask-inverted: True and False of an attention mask are exchanged.

    What it checks:
        The share of a boolean attn_mask that is False is the share of padding in the batch, not the
        share of tokens; and what a mask over keys lets attention see is not the padding alone.

    Why it matters:
        scaled_dot_product_attention attends where the mask is True; MultiheadAttention and many
        others leave out where it is True. With the wrong one, tokens see nothing but padding.

    Fires on:
        A mask whose share of False is exactly the share of tokens, while the batch has padding. One
        that differs between queries: in three batches with other shares of padding, and none that
        says otherwise between them. Two calls of scaled_dot_product_attention, or of
        nn.MultiheadAttention, with a mask (key_padding_mask, too) that leaves in what one token at
        the end of all rows fills, more of it in some rows than in others, and leaves out all else.

    Stays quiet on:
        Masks of tokens; masks that also are causal, or local; batches half of which is padding,
        where the tokens are not known; tokens on a device.

    Fix:
        Pass attn_mask=(attention_mask != 0), True where a token is, to
        scaled_dot_product_attention; key_padding_mask=(tokens == padding), True where none is, to
        nn.MultiheadAttention.

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

    def __init__(self) -> None:
        super().__init__()
        self._passes = Passes()
        self._agreed: set[float] = set()  # shares of padding, since a mask was right
        self._hiding: list[CallEvent] = []  # of a model that goes on: their mask shows no token
        self._first: Violation | None = None
        self._found = 0

    def observe(self, event: Event) -> list[Violation]:
        told: list[Violation] = []
        if isinstance(event, CallEvent):
            if event.api in _MASKS:
                self._look(event)
            elif event.root:
                told = self._hidden(event)
        found = self._passes.observe(event)
        return told if found is None else told + self._compare(found)

    def _look(self, call: CallEvent) -> None:
        told = [number(given(call, name), "inverted") for name in _MASKS[call.api]]
        self.triggered += any(one is not None for one in told)
        if any(told):
            self._hiding.append(call)

    def _hidden(self, root: CallEvent) -> list[Violation]:
        calls, self._hiding = self._hiding, []
        if not calls:
            return []
        self._first = self._first or self._hides_all(root, calls[0])
        self._found += 1
        return [self._first] if self._found == _PROOF else []

    def _compare(self, found: Pass) -> list[Violation]:
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
                self.code,
                found,
                f"the mask of attention is inverted; {observed}",
                expected="the mask leaves padding out",
                observed=observed,
            )
        ]

    def _hides_all(self, root: CallEvent, call: CallEvent) -> Violation:
        name = next(n for n in _MASKS[call.api] if number(given(call, n), "inverted"))
        observed = f"{name} leaves out all tokens, and nothing of the padding"
        return Violation(
            check_id=self.code,
            step=root.step,
            rank=root.rank,
            stage=root.stage,
            subject=Subject(api=call.api, module=root.module),
            symptom=Symptom.UNMASKED,
            message=f"the mask of attention is inverted; {observed}",
            expected="the mask leaves padding out",
            observed=observed,
            evidence=(call, root),
            likely_cause=f"True and False are exchanged: {observed}. {_MEANS[call.api]}",
            fix=_FIXES[call.api],
        )


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
