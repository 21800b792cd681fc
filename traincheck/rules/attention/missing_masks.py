"""Masks that are missing: between packed rows, and over later tokens."""

from __future__ import annotations

from collections.abc import Sequence

from traincheck.readings.losses import OVER_CLASSES, are_next_tokens, given
from traincheck.readings.provider import RunStates
from traincheck.rules.attention.calls import ATTENTION, AttentionPasses, attention_violation
from traincheck.rules.base.rule import BuiltInRule, EventRule
from traincheck.rules.shared.causality import CALLS, DECODER_LAYER, Readers, is_open
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import SOFTMAXES, Families


class PackedRowsNotSeparated(BuiltInRule, code="TC318", severity="error"):
    """packed-rows-not-separated: attention is not separated between sequences that share a row.

    What it checks:
        If position_ids restart within a row, calls of scaled_dot_product_attention get a mask that
        can separate the sequences of the row.

    Why it matters:
        Tokens of one document attend to earlier documents in the same row. The positions make these
        look close.

    Fires on:
        - A batch of packed sequences for which attention gets no mask, or only is_causal.

    Stays quiet on:
        - A block-diagonal mask.
        - Positions that only increase.
        - Attention computed in another way, which may receive the lengths.

    Fix:
        Build a block-diagonal mask from position_ids, or use variable-length attention.

    Source:
        https://github.com/huggingface/transformers/pull/46634, https://github.com/areal-project/AReaL/issues/1442
    """

    title = "Packed sequences in {subject} attend to each other"
    likely_cause = (
        "Several sequences share a row, but {observed}. A token can attend to the sequences "
        "before its own."
    )
    fix = "Pass a block-diagonal mask to attention, or the lengths of the packed sequences."
    needs = ATTENTION

    uses = (AttentionPasses,)

    def bind(self, run_states: RunStates) -> None:
        self._passes = run_states.of(AttentionPasses)

    def observe(self, event: Event) -> list[Violation]:
        found = self._passes.ended
        rows = 0 if found is None else found.batch.tokens.get("resets", 0)
        if found is None or not rows:
            return []
        self.triggered += 1
        if not found.is_unmasked:
            return []
        observed = "attn_mask is None in every call of attention"
        return [
            attention_violation(
                self.code,
                found,
                f"positions restart at 0 within {rows} rows of the batch, but {observed}",
                expected="a mask that separates packed sequences",
                observed=observed,
            )
        ]


_PROOF = 2  # steps
_BY_HAND = "Fill the scores of later positions with -inf before softmax."
_OF_DECODER = "Pass nn.Transformer.generate_square_subsequent_mask(length) as tgt_mask."


class MissingCausalMask(EventRule, code="TC324", severity="error", aliases=("future-attended",)):
    """missing-causal-mask: a language model sees the tokens that it must predict.

    What it checks:
        If the target of a loss is the next tokens of the model's input, its attention excludes the
        tokens after each position.

    Why it matters:
        Each position copies its label from the next position. The loss falls further than it
        should, also in evaluation. Generated text makes no sense, because no later token exists
        then.

    Fires on:
        - Two training steps in which every call of scaled_dot_product_attention or
          nn.MultiheadAttention covers all tokens without is_causal and attn_mask.
        - Attention written by hand: every softmax over as many positions as there are tokens gives
          weight to all later positions.
        - A model of two texts (e.g. translation): the same for the text whose next tokens are
          predicted.
        - nn.TransformerDecoderLayer without tgt_mask.

    Stays quiet on:
        - A model in which any attention is causal, masked, or over other positions. A mask of the
          padding alone also counts as a mask.
        - Attention written by hand in a model of two texts of the same length.
        - Masked language models.
        - Evaluation.
        - Unrecorded steps.

    Fix:
        Pass is_causal=True to scaled_dot_product_attention, or a mask such as
        nn.Transformer.generate_square_subsequent_mask to modules.

    Source:
        https://github.com/pytorch/tutorials/issues/2478, https://github.com/huggingface/transformers/issues/48745
    """

    title = "{subject} attends to the tokens that it must predict"
    likely_cause = "The causal mask is missing: {observed}. Each position sees its own label."
    fix = (
        "Pass is_causal=True to scaled_dot_product_attention, or "
        "nn.Transformer.generate_square_subsequent_mask(length) as the mask of the module."
    )
    needs = Needs(
        calls=OVER_CLASSES | CALLS | {Families.MODULE},
        kinds=frozenset({"batch", "step"}),
        stats=OVER_CLASSES | SOFTMAXES | {"batch"},
    )

    def __init__(self) -> None:
        super().__init__()
        self._readers = Readers()
        self._first: Violation | None = None
        self._found = 0

    def judge(self, event: Event) -> list[Violation]:
        step = self._readers.observe(event) if self._found < _PROOF else None
        if step is None:
            return []
        losses = (given(loss, "target") for loss in step.losses)
        target = next((labels for labels in losses if are_next_tokens(labels)), None)
        if target is None:
            return []
        over = [(read, *read.over(target)) for read in step.reads]
        over = [one for one in over if one[0].calls or one[2]]
        if not over:
            return []
        self.triggered += 1
        if not all(
            bool(calls) and all(is_open(call, length) for call in calls)
            for _, length, calls in over
        ):
            return []
        self._found += 1
        read, _, calls = over[0]
        self._first = self._first or self._violation(read.root, calls)
        return [self._first] if self._found == _PROOF else []

    def _violation(self, root: CallEvent, calls: Sequence[CallEvent]) -> Violation:
        names = " and ".join(
            sorted({call.api.removesuffix(".forward").rpartition(".")[2] for call in calls})
        )
        is_one = len(calls) == 1
        which = f"{names} is called" if is_one else f"all {len(calls)} calls of {names} are made"
        observed, fix = f"{which} without is_causal and without attn_mask", ""
        if calls[0].api == DECODER_LAYER:
            observed, fix = f"{which} without tgt_mask", _OF_DECODER
        elif any(call.api in SOFTMAXES for call in calls):
            observed, fix = f"{which} over all positions, including later ones", _BY_HAND
        return self.violation(
            root,
            subject=Subject(api=calls[0].api, module=root.module),
            symptom=Symptom.UNMASKED,
            message=f"the loss is over the next tokens of the input of {root.module}; {observed}",
            expected="attention that excludes the tokens after each position",
            observed=observed,
            evidence=(calls[0], root),
            fix=fix,
        )
