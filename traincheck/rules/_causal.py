"""Which positions attention looks at, however it is written, and over what text. No verdict."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from traincheck.rules._losses import OVER_CLASSES, are_next_tokens, as_loss, number
from traincheck.schema.apis import ATTENTION as SDPA
from traincheck.schema.apis import MULTI_HEAD, SOFTMAXES, Families
from traincheck.schema.events import CallEvent, Event, StepEvent
from traincheck.schema.values import tensor_summary

CALLS = SOFTMAXES | {SDPA, MULTI_HEAD}
_KEYS = -1  # the dim of weights of attention
_ALL = 0.999  # of the later positions
_NDIM = 2  # rows of tokens
_WHOLE = frozenset({"int32", "int64"})
_NO_TOKENS = ("mask", "position", "type", "label")  # in names of arguments


class Read(NamedTuple):
    """A call of a model on a text. length: of its rows. calls: of attention over all of them."""

    root: CallEvent
    length: int | None
    calls: Sequence[CallEvent]


@dataclass(slots=True)
class TrainingStep:
    """What models read in a step of training, and the losses over classes."""

    reads: list[Read] = field(default_factory=list)
    losses: list[CallEvent] = field(default_factory=list)
    waiting: list[CallEvent] = field(default_factory=list)  # attention of a model that goes on


class Readers:
    """The books of all ranks."""

    def __init__(self) -> None:
        self._steps: defaultdict[int, TrainingStep] = defaultdict(TrainingStep)

    def observe(self, event: Event) -> TrainingStep | None:
        """Enter an event; the step that it ends."""
        if isinstance(event, StepEvent):
            return self._steps.pop(event.rank, None)
        if not isinstance(event, CallEvent) or not event.grad_enabled or event.stage != "train":
            return None
        step = self._steps[event.rank]
        if _is_attention(event):
            step.waiting.append(event)
        elif event.family == Families.MODULE and event.root:
            length = _text_length(event.args)
            step.reads.append(Read(event, length, _over_text(step.waiting, length)))
            step.waiting = []
        elif (loss := as_loss(event, OVER_CLASSES)) is not None:
            step.losses.append(loss)
        return None


def _text_length(args: Mapping[str, Any]) -> int | None:
    """How many tokens the rows of the one text have that a model is given."""
    texts = []
    for name, value in args.items():
        tensor = tensor_summary(value)
        if tensor is None or tensor.dtype not in _WHOLE or len(tensor.shape) != _NDIM:
            continue
        if not are_next_tokens(tensor) and not any(part in name for part in _NO_TOKENS):
            texts.append(tensor.shape[1])
    return texts[0] if len(texts) == 1 else None


def softmax_dim(call: CallEvent) -> int | None:
    """The dim that a softmax runs over, counted from the end; None where that is not known."""
    result, dim = tensor_summary(call.result), call.args.get("dim")
    if result is None or not isinstance(dim, int):
        return None
    return dim if dim < 0 else dim - len(result.shape)


def _share_hidden(call: CallEvent) -> float | None:
    """The share of later positions that a softmax gives no weight; None of anything else."""
    if call.api not in SOFTMAXES or softmax_dim(call) not in (_KEYS, None):
        return None
    return number(tensor_summary(call.result), "hidden")


def _is_attention(call: CallEvent) -> bool:
    """Whether it is a call of attention, or may be its softmax."""
    return call.api in (SDPA, MULTI_HEAD) or _share_hidden(call) is not None


def _over_text(calls: Sequence[CallEvent], length: int | None) -> list[CallEvent]:
    """Those of attention itself over so many positions, without softmax over anything else."""
    # What multi_head_attention_forward calls has the mask of padding added
    heads = {call.span for call in calls if call.api == MULTI_HEAD}
    return [call for call in calls if call.parent not in heads and _is_over(call, length)]


def _is_over(call: CallEvent, length: int | None) -> bool:
    result = tensor_summary(call.result) if call.api in SOFTMAXES else None
    return result is None or result.shape[-1] == length


def is_open(call: CallEvent, length: int) -> bool:
    """Whether each of so many positions attends to all of them."""
    if call.api in SOFTMAXES:
        return _share_hidden(call) == 0
    if call.args.get("attn_mask") is not None or call.args.get("is_causal") is True:
        return False
    query, key = (tensor_summary(call.args.get(name)) for name in ("query", "key"))
    dim = 0 if call.api == MULTI_HEAD else -2
    if query is None or key is None or min(len(query.shape), len(key.shape)) < _NDIM:
        return False
    return query.shape[dim] == key.shape[dim] == length


def is_causal(call: CallEvent) -> bool:
    """Whether each position attends to none behind it, for sure."""
    if call.api in SOFTMAXES:
        return (_share_hidden(call) or 0) >= _ALL
    return call.args.get("is_causal") is True
