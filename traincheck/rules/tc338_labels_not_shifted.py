"""TC338: a causal language model is to predict the very tokens that it is given. By loss, too."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from math import log

from traincheck.rules._causal import (
    CALLS,
    is_attention,
    is_causal,
    is_open,
    over_text,
    text_length,
)
from traincheck.rules._losses import CROSS_ENTROPY, NLL, as_loss, given, loss_violation, number
from traincheck.rules._single import SingleEvents
from traincheck.schema.apis import EMBEDDING, SOFTMAXES, Families
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event, StepEvent
from traincheck.schema.findings import CheckInfo, Violation
from traincheck.schema.values import tensor_summary

_LOSSES = frozenset({CROSS_ENTROPY, NLL})
_NEAR_ZERO = 0.02  # of the loss of a guess
_PROOF = 2  # steps


class LabelsNotShifted:
    """TC338 labels-not-shifted: a causal language model is to predict the token that it is given.

    What it checks:
        Where attention hides the tokens behind each position, labels are not the tokens that the
        model embeds at the same positions.

    Why it matters:
        Each position only has to say what it is given. The loss falls to nearly nothing, and what
        the model writes is one token again and again.

    Fires on:
        Two training steps in which the targets of all losses over classes are the tokens that the
        model embeds, its attention over them is causal, and the loss is below 2 % of that of a
        guess; named in the first such step.

    Stays quiet on:
        Labels that are one token ahead; models that shift what they embed; a loss that stays up,
        as where the shift comes behind the embedding; attention in both directions; evaluation;
        steps between the sampled ones.

    Options:
        share: of the loss of a guess among all classes, below which the labels are taken for
            copied.

    Fix:
        Train on model(tokens[:, :-1]) with tokens[:, 1:] as labels.

    Source:
        https://github.com/KempnerInstitute/KempnerForge/issues/154
    """

    info = CheckInfo(
        check_id="TC338",
        kind="rule",
        code="TC338",
        severity="warning",
        title="Labels are the tokens that the model is given",
        likely_cause="Inputs and labels are not shifted against each other: {observed}.",
        fix="Give the model tokens[:, :-1], and the loss tokens[:, 1:].",
    )
    needs = Needs(
        calls=_LOSSES | CALLS | {EMBEDDING, Families.MODULE},
        kinds=frozenset({"batch", "step"}),
        stats=_LOSSES | SOFTMAXES | {EMBEDDING, "batch"},
    )

    def __init__(self, share: float = _NEAR_ZERO) -> None:
        self.share = share

    def monitor(self) -> CopiedLabels:
        return CopiedLabels(self.share)


@dataclass(slots=True)
class _Step:
    """What a rank has done since its last step."""

    calls: list[CallEvent] = field(default_factory=list)  # of attention, since the last model
    is_causal: bool = False  # some model was
    is_open: bool = False
    losses: list[CallEvent] = field(default_factory=list)


class CopiedLabels(SingleEvents):
    """Joins the attention of a step with what its losses were given, and gave."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self._share = share
        self._steps: defaultdict[int, _Step] = defaultdict(_Step)  # by rank
        self._first: CallEvent | None = None
        self._found = 0

    def judge(self, event: Event) -> list[Violation]:
        if self._found >= _PROOF:
            return []
        if isinstance(event, StepEvent):
            return self._conclude(self._steps.pop(event.rank, _Step()))
        if isinstance(event, CallEvent) and event.grad_enabled and event.stage == "train":
            self._call(self._steps[event.rank], event)
        return []

    def _call(self, step: _Step, event: CallEvent) -> None:
        if is_attention(event):
            step.calls.append(event)
        elif event.family == Families.MODULE and event.root:
            length = text_length(event.args)
            calls, step.calls = over_text(step.calls, length), []
            step.is_causal |= any(map(is_causal, calls))
            step.is_open |= any(is_open(call, length) for call in calls if length)
        elif (loss := as_loss(event, _LOSSES)) is not None:
            step.losses.append(loss)

    def _conclude(self, step: _Step) -> list[Violation]:
        if not step.losses or not step.is_causal or step.is_open:
            return []
        self.triggered += 1
        if not all(number(given(loss, "target"), "fed") for loss in step.losses):
            return []
        self._first = self._first or step.losses[0]
        if not all(_is_low(loss, self._share) for loss in step.losses):
            return []
        self._found += 1
        return [_violation(self._first, step.losses[0])] if self._found == _PROOF else []


def _is_low(loss: CallEvent, share: float) -> bool:
    """Whether a mean over all labels is next to nothing."""
    result, scores = tensor_summary(loss.result), given(loss, "input")
    if result is None or result.value is None or scores is None or len(scores.shape) < 2:  # noqa: PLR2004
        return False
    if loss.args.get("reduction") != "mean":
        return False
    return result.value < share * log(max(scores.shape[1], 2))


def _violation(first: CallEvent, last: CallEvent) -> Violation:
    result = tensor_summary(last.result)
    value = 0.0 if result is None or result.value is None else result.value
    return loss_violation(
        "TC338",
        first,
        "the labels are the tokens that the model is given, each at its position",
        expected="labels that are one token ahead of what the model is given",
        observed=f"the same tokens as labels and as inputs; the loss falls to {value:.2g}",
    )
