"""Labels of tokens: end tokens that are not learned, padding that is."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from traincheck.readings import recorded
from traincheck.readings.losses import CROSS_ENTROPY, as_loss, given, loss_needs
from traincheck.readings.operations import Look, Operation
from traincheck.rules.base.rule import EventRule
from traincheck.rules.shared.loaders import BATCHES, DATA_LOADER, LoaderRule
from traincheck.rules.shared.losses import loss_violation
from traincheck.schema.claims import Needs
from traincheck.schema.events import BatchEvent, CallEvent, Event, MarkEvent, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.operations import OperationUses
from traincheck.schema.observations.reading import observed
from traincheck.schema.values import tensor_summary

_PROOF = 2  # batches in a row


class EndTokenNotLearned(LoaderRule, code="TC319", severity="error"):
    """end-token-not-learned: rows end with a token that is never a label.

    What it checks:
        The token that ends the rows of a training batch (within the attention mask) occurs among
        the labels.

    Why it matters:
        The model never learns to stop: after fine-tuning it generates text until the length limit.

    Fires on:
        - A tokenizer whose padding token is its end token, with a collator that excludes all
          padding tokens from the loss. In two batches in a row, this token is -100 in all labels,
          and no other attended token is.

    Stays quiet on:
        - Rows that end with a labelled token.
        - Padding with a separate token.
        - Tags of words, since an end token has no tag.
        - Prompts that are excluded from the loss.
        - Masked language models.

    Fix:
        Use a separate padding token, or set labels by the attention mask, not by the token.

    Source:
        https://github.com/huggingface/transformers/issues/23530, https://github.com/huggingface/trl/issues/976
    """

    title = "The end token is excluded from the labels of {variables}"
    likely_cause = (
        "Padding and end of text may be the same token (pad_token = eos_token), so that the "
        "labels of both become -100: {observed}."
    )
    fix = "Use another padding token, or make labels from the attention mask."
    needs = BATCHES

    def __init__(self) -> None:
        super().__init__()
        self._lost: dict[str, list[BatchEvent]] = {}

    def observe(self, event: Event) -> list[Violation]:
        if isinstance(event, BatchEvent) and any(p.endswith(".labels") for p in event.leaves):
            self.triggered += 1
            token = recorded.lost_end(event)
            lost = self._lost.setdefault(event.loader, [])
            if token is None or (lost and recorded.lost_end(lost[0]) != token):
                lost.clear()
            elif len(lost) < _PROOF:
                lost.append(event)
        elif isinstance(event, StepEvent):
            found = []
            for loader, lost in self._lost.items():
                is_training = (event.rank, loader) in self.training
                if len(lost) >= _PROOF and is_training and loader not in self.reported:
                    self.reported.add(loader)
                    found.append(self._violation(lost[0]))
            return found
        return []

    def _violation(self, event: BatchEvent) -> Violation:
        token = recorded.lost_end(event)
        observed = f"token {token} ends most rows and is -100 in all labels"
        return self.violation(
            event,
            stage="train",
            subject=Subject(api=DATA_LOADER, variable=event.loader),
            symptom=Symptom.LOSS_INPUT,
            message=f"the end token is never a label in batches of {event.loader}; {observed}",
            expected="the token that ends a row is a label like any other",
            observed=observed,
        )


_LEAST_PADDING = 0.05  # fraction of the positions of a batch
_ENOUGH = 2  # losses in a row
_LOOKS = 3  # steps with padding in which a line was looked at


class PaddingAmongLabels(EventRule, code="TC332", severity="error"):
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
        - A model that is given tokens and a mask of the same shape, and a loss whose labels are
          these tokens, or the next ones. In three steps with padding, at least one in twenty labels
          of the loss is at a position that the mask excludes. These steps are among the first six,
          or every fiftieth.

    Stays quiet on:
        - Labels of -100, and any other ignore_index that padding has.
        - The end of a text that is learned although the mask excludes it.
        - Losses that are weighted by hand (reduction="none") or by class.
        - Labels that the model itself sets to -100.
        - Tags of words.
        - Masks whose excluded positions have several tokens, e.g. tokens that are predicted.
        - Masks of a source, with labels of another text.
        - Losses that no backward pass uses.
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
    needs = loss_needs(CROSS_ENTROPY) | Needs(kinds=frozenset({"batch"})) | needs_of(OperationUses)

    def __init__(self) -> None:
        super().__init__()
        self._batch: _Padded | None = None
        self._first: CallEvent | None = None
        self._count = 0
        self._masks: dict[tuple[int, Operation], _Mask] = {}

    def judge(self, event: Event) -> list[Violation]:
        if self.is_over:
            return []
        if isinstance(event, BatchEvent):
            self._batch = _padded(event)
        elif isinstance(event, StepEvent):
            self._batch = None
        elif isinstance(event, MarkEvent):
            return self._judge_masks(event)
        elif self._batch is not None:
            return self._judge_loss(event, self._batch)
        return []

    def _judge_loss(self, event: Event, batch: _Padded) -> list[Violation]:
        call = as_loss(event, (CROSS_ENTROPY,))
        target = None if call is None or call.stage != "train" else given(call, "target")
        if call is None or target is None or target.stats is None:
            return []
        # A language model has a label for each position except the first
        elements, whole = prod(target.shape), batch.rows * batch.columns
        if elements not in (whole, whole - batch.rows):
            return []
        self.triggered += 1
        left_out = recorded.ignored(target) or 0.0
        if (
            recorded.ignored_label(call) == batch.label
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
        self.is_over = True
        return [
            loss_violation(
                self.code,
                self._first,
                "cross_entropy is taken over padding",
                expected="labels of padding that the loss ignores",
                observed=f"{batch.share:.0%} of a batch is padding, with the label {batch.label}",
            )
        ]

    def _judge_masks(self, event: MarkEvent) -> list[Violation]:
        """Look at labels beside the masks that models were given."""
        found = observed(event, OperationUses)
        for use in found.uses if found is not None else ():
            numbers = use.numbers
            if use.look != "padded" or not numbers.get("masked"):
                continue
            self.triggered += 1
            place = Operation(use.look, use.function, use.where, use.of)
            first = Look(event, use.calls, numbers).alone(place)
            mask = self._masks.setdefault((event.rank, place), _Mask(first))
            mask.shares.append(numbers["counted"])
            if not (numbers["made"] == numbers["one_value"] == 1 and numbers["counted"]):
                mask.is_heeded = True
            share = sum(mask.shares) / len(mask.shares)
            if mask.is_heeded or len(mask.shares) < _LOOKS or share < _LEAST_PADDING:
                continue
            self.is_over = True
            return self.found(
                event,
                step=mask.first.step,
                stage="train",
                subject=Subject(api=f"torch.nn.functional.{use.function}"),
                symptom=Symptom.LOSS_INPUT,
                message=f"{use.function} is taken over padding",
                expected="labels of padding that the loss ignores",
                observed=f"{share:.0%} of the labels of the loss are at positions that {use.of} "
                "excludes",
                title=f"{share:.0%} of the labels of the loss are padding",
                evidence=(mask.first,),
            )
        return []


@dataclass(slots=True)
class _Mask:
    """A mask that a model is given.

    Attributes:
        first: the first step with padding.
        shares: of the labels at excluded positions, by step.
        is_heeded: in some step the labels are not all of padding that counts.
    """

    first: Event
    shares: list[float] = field(default_factory=list)
    is_heeded: bool = False


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
    share, label = recorded.padding(event), event.tokens.get("padding_label")
    if not isinstance(share, float) or not isinstance(label, int) or share < _LEAST_PADDING:
        return None
    for path, leaf in event.leaves.items():
        found = tensor_summary(leaf) if path.endswith("labels") else None
        if found is not None and len(found.shape) == 2:  # noqa: PLR2004
            return _Padded(share, label, *found.shape)
    return None
