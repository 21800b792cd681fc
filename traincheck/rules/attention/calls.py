"""Attention calls inside each forward of the whole model, and the batch that it received."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from traincheck.readings import recorded
from traincheck.readings.provider import RunState
from traincheck.schema.claims import Needs
from traincheck.schema.events import BatchEvent, CallEvent, Event
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import ATTENTION as SDPA
from traincheck.schema.torch_api import Families
from traincheck.schema.values import TensorSummary, tensor_summary

ATTENTION = Needs(calls=frozenset({SDPA, Families.MODULE}), kinds=frozenset({"batch", "step"}))
_MASK = "attention_mask"
_AHEAD = 3  # batches


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One call of the whole model on a batch of tokens.

    calls: attention calls over all its tokens. shape: (rows, tokens).
    """

    root: CallEvent
    batch: BatchEvent
    calls: Sequence[CallEvent]
    shape: tuple[int, ...]

    @property
    def is_unmasked(self) -> bool:
        """Whether no attention call received a mask."""
        return all(call.args.get("attn_mask") is None for call in self.calls)

    @property
    def is_causal(self) -> bool:
        return any(call.args.get("is_causal") is True for call in self.calls)


class AttentionPasses(RunState):
    """Matches batches, attention calls and calls of the whole model.

    Attributes:
        ended: the pass that the last event ended, if its batch has tokens and attention.
    """

    def __init__(self) -> None:
        # The last batches: a loop may fetch the next batch before it uses this one
        self._batches: deque[BatchEvent] = deque(maxlen=_AHEAD)
        self._calls: list[CallEvent] = []
        self.ended: Pass | None = None

    def observe(self, event: Event) -> None:
        self.ended = self._ended_by(event)

    def _ended_by(self, event: Event) -> Pass | None:
        if isinstance(event, BatchEvent):
            self._batches.append(event)
        elif isinstance(event, CallEvent):
            if event.api == SDPA:
                if self._batches:
                    self._calls.append(event)
            elif event.root:
                calls, self._calls = self._calls, []
                found = [
                    one
                    for batch in self._batches
                    if (one := _over(batch, event, calls)) is not None
                ]
                if not found:
                    return None
                given = _fingerprints(event.args)
                sure = [one for one in found if given & _fingerprints(one.batch.leaves)]
                # If the batch is ambiguous, take the one with the least padding
                return sure[-1] if sure else min(reversed(found), key=_padding)
        return None


def _over(batch: BatchEvent, root: CallEvent, calls: Sequence[CallEvent]) -> Pass | None:
    """The pass over this batch, or None if the shapes do not match."""
    shape = _tokens(batch) if batch.tokens else ()
    over_all = [call for call in calls if shape and _length(call) == shape[1]]
    return Pass(root=root, batch=batch, calls=over_all, shape=shape) if over_all else None


def _padding(one: Pass) -> float:
    padding = recorded.padding(one.batch)
    return padding if isinstance(padding, float) else 0.0


def _fingerprints(tensors: Mapping[str, Any]) -> set[str]:
    found = (tensor_summary(value) for value in tensors.values())
    return {one.fingerprint for one in found if one is not None and one.fingerprint}


def mask_passed(found: Pass) -> str | None:
    """The argument name under which the model received the attention mask; None without a mask.

    Without a name, a mask is recognized only beside a second tensor of the same shape (the ids).
    """
    named = [n for n, value in found.root.args.items() if "mask" in n and tensor_summary(value)]
    if named:
        return named[0]
    like = [
        name
        for name, value in found.root.args.items()
        if name.isdigit()
        and (tensor := tensor_summary(value)) is not None
        and tensor.shape == found.shape
    ]
    return f"argument {like[-1]}" if len(like) > 1 else None


def attention_violation(
    code: str, found: Pass, message: str, *, expected: str, observed: str
) -> Violation:
    """A violation about the attention of a pass."""
    root = found.root
    return Violation(
        check_id=code,
        step=root.step,
        rank=root.rank,
        stage=root.stage,
        subject=Subject(api=SDPA, module=root.module),
        symptom=Symptom.UNMASKED,
        message=message,
        expected=expected,
        observed=observed,
        evidence=(found.batch, found.calls[0], root),
    )


def _tokens(batch: BatchEvent) -> tuple[int, ...]:
    """The shape of the mask, or of the positions."""
    for name in (_MASK, "position_ids", "input_ids"):
        for path, leaf in batch.leaves.items():
            summary = tensor_summary(leaf)
            if path.endswith(f".{name}") and summary is not None and len(summary.shape) == 2:  # noqa: PLR2004
                return summary.shape
    return ()


def _length(call: CallEvent) -> int:
    """The number of keys that a call attends to."""
    key: TensorSummary | None = tensor_summary(call.args.get("key"))
    return key.shape[-2] if key is not None and len(key.shape) > 1 else 0
