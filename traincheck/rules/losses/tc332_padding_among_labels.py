"""A language model is trained to predict padding."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from traincheck.readings.losses import CROSS_ENTROPY, as_loss, given, loss_needs
from traincheck.rules.base.rule import EventRule
from traincheck.rules.shared.losses import loss_violation
from traincheck.schema.claims import Needs
from traincheck.schema.events import BatchEvent, CallEvent, Event, StepEvent
from traincheck.schema.findings import Violation
from traincheck.schema.torch_api import IGNORED_LABEL
from traincheck.schema.values import tensor_summary

_LEAST_PADDING = 0.05  # fraction of the positions of a batch
_ENOUGH = 2  # losses in a row


class PaddingAmongLabels(EventRule, code="TC332"):
    """padding-among-labels: the loss of a language model is taken over padding.

    What it checks:
        cross_entropy ignores labels at positions that the attention mask excludes.

    Why it matters:
        Padding is easy to predict. It lowers the reported loss and dilutes the mean over the text,
        the more the shorter a text is. If the padding token is the end token, the model also learns
        when the other texts of its batch end.

    Fires on:
        - Two losses in a row over all positions of a batch of which at least one in twenty is
          padding, if all padding has one label that the loss counts. Example: labels =
          input_ids.clone().

    Stays quiet on:
        - Labels of -100, and any other ignore_index that padding has.
        - Losses that are weighted by hand (reduction="none") or by class.
        - Labels that the model itself sets to -100.
        - Tags of words.
        - Batches without an attention mask.

    Fix:
        Set labels[attention_mask == 0] = -100.

    Source:
        https://github.com/huggingface/trl/issues/1625
    """

    title = "The loss is taken over padding"
    likely_cause = "Labels are a copy of the tokens, padding included: {observed}."
    fix = (
        "Set labels to -100 where the attention mask is 0, or pass the label of padding as "
        "ignore_index."
    )
    needs = loss_needs(CROSS_ENTROPY) | Needs(kinds=frozenset({"batch"}))

    def __init__(self) -> None:
        super().__init__()
        self._batch: _Padded | None = None
        self._first: CallEvent | None = None
        self._count = 0

    def judge(self, event: Event) -> list[Violation]:
        if isinstance(event, BatchEvent):
            self._batch = _padded(event)
        elif isinstance(event, StepEvent):
            self._batch = None
        elif self._batch is not None:
            call = as_loss(event, (CROSS_ENTROPY,))
            if call is not None and call.stage == "train":
                return self._loss(call, self._batch)
        return []

    def _loss(self, call: CallEvent, batch: _Padded) -> list[Violation]:
        target = given(call, "target")
        if target is None or target.stats is None:
            return []
        # A language model has a label for each position except the first
        elements, whole = prod(target.shape), batch.rows * batch.columns
        if elements not in (whole, whole - batch.rows):
            return []
        self.triggered += 1
        left_out = target.stats.get("ignored", 0.0)
        if (
            call.args.get("ignore_index", IGNORED_LABEL) == batch.label
            or call.args.get("reduction") == "none"
            or call.args.get("weight") is not None
            or left_out > batch.share / 2  # each row may ignore its first label anyway
        ):
            self._count = 0
            return []
        self._first = call if self._count == 0 else self._first
        self._count += 1
        if self._count != _ENOUGH or self._first is None:
            return []
        return [
            loss_violation(
                self.code,
                self._first,
                "cross_entropy is taken over padding",
                expected="labels of padding that the loss ignores",
                observed=f"{batch.share:.0%} of a batch is padding, with the label {batch.label}",
            )
        ]


@dataclass(frozen=True, slots=True)
class _Padded:
    """A batch with padding.

    Attributes:
        label: the label of padding.
        rows: rows of tokens.
        columns: tokens per row.
    """

    share: float
    label: int
    rows: int
    columns: int


def _padded(event: BatchEvent) -> _Padded | None:
    share, label = event.tokens.get("padding"), event.tokens.get("padding_label")
    if not isinstance(share, float) or not isinstance(label, int) or share < _LEAST_PADDING:
        return None
    for path, leaf in event.leaves.items():
        found = tensor_summary(leaf) if path.endswith("labels") else None
        if found is not None and len(found.shape) == 2:  # noqa: PLR2004
            return _Padded(share, label, *found.shape)
    return None
