"""The positions that attention covers, in any implementation, and the texts it reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

from traincheck.readings import recorded
from traincheck.readings.losses import OVER_CLASSES, are_next_tokens, as_loss, number
from traincheck.schema.events import CallEvent, Event, StepEvent
from traincheck.schema.torch_api import ATTENTION as SDPA
from traincheck.schema.torch_api import MULTI_HEAD, SOFTMAXES, Families
from traincheck.schema.values import TensorSummary, tensor_summary

CALLS = SOFTMAXES | {SDPA, MULTI_HEAD}
DECODER_LAYER = "torch.nn.modules.transformer.TransformerDecoderLayer.forward"
_KEYS = -1  # the key dim of attention weights
_ALL = 0.999  # of the later positions
_NDIM = 2  # rows of tokens
_COLUMN, _ROW = 0, 1  # the dim of the tokens of a text
_WHOLE = frozenset({"int32", "int64"})
_NO_TOKENS = ("mask", "position", "type", "label")  # parts of argument names


class Read(NamedTuple):
    """A call of a model on texts. texts: their shapes. attention: all attention calls inside.

    decoders: calls of torch's decoder layers, whose self-attention is governed by a mask.
    """

    root: CallEvent
    texts: Sequence[tuple[int, ...]]
    attention: Sequence[CallEvent]
    decoders: Sequence[CallEvent] = ()

    @property
    def length(self) -> int | None:
        """The number of tokens in the rows of the text, if there is exactly one text."""
        return self.texts[0][_ROW] if len(self.texts) == 1 else None

    @property
    def calls(self) -> list[CallEvent]:
        """Attention calls over the whole text, without softmax over anything else."""
        return [call for call in self.attention if _is_over(call, self.length)]

    def over(self, target: TensorSummary) -> tuple[int, list[CallEvent]]:
        """The length of the text whose next tokens are the target, and attention within it.

        With several texts, only decoder layers count, or a text that its length distinguishes from
        the others.
        """
        lies = _COLUMN if number(target, "columns") else _ROW
        wanted = prod(target.shape)
        lengths = [shape[lies] for shape in self.texts]
        fitting = {n for n, shape in zip(lengths, self.texts) if _fits(wanted, prod(shape), n)}
        length = lengths[0] if len(lengths) == 1 else fitting.pop() if len(fitting) == 1 else 0
        decoders = [call for call in self.decoders if length in _sizes(call)]
        if decoders:
            return length, decoders
        if len(lengths) == 1:
            return length, [call for call in self.attention if _is_over(call, length)]
        if lengths.count(length) != 1:
            return 0, []
        return length, [call for call in self.attention if spans(call) == (length, length)]


def _fits(labels: int, tokens: int, length: int) -> bool:
    """Whether the labels match all tokens of such rows, or all but the last of each row."""
    return labels in (tokens, tokens // max(length, 1) * (length - 1))


def _sizes(decoder: CallEvent) -> tuple[int, ...]:
    """Rows and positions of the input of a decoder layer, in either order."""
    tensor = tensor_summary(decoder.args.get("tgt", decoder.args.get("0")))
    return () if tensor is None else tuple(tensor.shape[:2])


@dataclass(slots=True)
class TrainingStep:
    """The texts that models read in a training step, and the losses over classes."""

    reads: list[Read] = field(default_factory=list)
    losses: list[CallEvent] = field(default_factory=list)
    # Of the open model call
    waiting: list[CallEvent] = field(default_factory=list)
    decoders: list[CallEvent] = field(default_factory=list)


class Readers:
    """The training steps of all ranks."""

    def __init__(self) -> None:
        self._steps: defaultdict[int, TrainingStep] = defaultdict(TrainingStep)

    def observe(self, event: Event) -> TrainingStep | None:
        """Add an event; return the step that it ends."""
        if isinstance(event, StepEvent):
            return self._steps.pop(event.rank, None)
        if not isinstance(event, CallEvent) or not event.grad_enabled or event.stage != "train":
            return None
        step = self._steps[event.rank]
        # Whether it is a call of attention, or possibly its softmax.
        if event.api in (SDPA, MULTI_HEAD) or _share_hidden(event) is not None:
            step.waiting.append(event)
        elif event.family == Families.MODULE and event.root:
            # Without calls of multi_head_attention_forward, whose mask includes the padding
            heads = {call.span for call in step.waiting if call.api == MULTI_HEAD}
            calls = [call for call in step.waiting if call.parent not in heads]
            # The shapes of the texts in the inputs of a model.
            texts = []
            for name, value in event.args.items():
                tensor = tensor_summary(value)
                if tensor is None or tensor.dtype not in _WHOLE or len(tensor.shape) != _NDIM:
                    continue
                if not are_next_tokens(tensor) and not any(part in name for part in _NO_TOKENS):
                    texts.append(tensor.shape)
            step.reads.append(Read(event, texts, calls, step.decoders))
            step.waiting, step.decoders = [], []
        elif event.api == DECODER_LAYER:
            step.decoders.append(event)
        elif (loss := as_loss(event, OVER_CLASSES)) is not None:
            step.losses.append(loss)
        return None


def softmax_dim(call: CallEvent) -> int | None:
    """The dim of a softmax, counted from the end; None if unknown."""
    result, dim = tensor_summary(call.result), call.args.get("dim")
    if result is None or not isinstance(dim, int):
        return None
    return dim if dim < 0 else dim - len(result.shape)


def _share_hidden(call: CallEvent) -> float | None:
    """The share of later positions to which a softmax gives no weight; None for other calls."""
    if call.api not in SOFTMAXES or softmax_dim(call) not in (_KEYS, None):
        return None
    return None if recorded.non_finite(call.result) else recorded.hidden(call.result)


def _is_over(call: CallEvent, length: int | None) -> bool:
    result = tensor_summary(call.result) if call.api in SOFTMAXES else None
    return result is None or result.shape[-1] == length


def spans(call: CallEvent) -> tuple[int, int] | None:
    """The number of positions that attend, and of those they attend to; None if unknown."""
    if call.api in SOFTMAXES:
        result = tensor_summary(call.result)
        return None if result is None else (result.shape[-2], result.shape[-1])
    query, key = (tensor_summary(call.args.get(name)) for name in ("query", "key"))
    if query is None or key is None or min(len(query.shape), len(key.shape)) < _NDIM:
        return None
    dim = 0 if call.api == MULTI_HEAD else -2
    return query.shape[dim], key.shape[dim]


def is_open(call: CallEvent, length: int) -> bool:
    """Whether each of ``length`` positions attends to all of them."""
    if call.api in SOFTMAXES:
        return _share_hidden(call) == 0
    if call.api == DECODER_LAYER:
        is_causal = call.args.get("tgt_is_causal", call.args.get("6"))
        return call.args.get("tgt_mask", call.args.get("2")) is None and not is_causal
    if call.args.get("attn_mask") is not None or call.args.get("is_causal") is True:
        return False
    return spans(call) == (length, length)


def is_causal(call: CallEvent) -> bool:
    """Whether certainly no position attends to a later one."""
    if call.api in SOFTMAXES:
        return (_share_hidden(call) or 0) >= _ALL
    return call.args.get("is_causal") is True
