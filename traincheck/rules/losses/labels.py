"""Class labels that teach nothing: none valid, one class only, the blank of CTC."""

from __future__ import annotations

import math

from traincheck.readings import recorded
from traincheck.readings.losses import (
    CROSS_ENTROPY,
    CTC,
    NLL,
    as_loss,
    bounds,
    class_count,
    given,
    loss_needs,
)
from traincheck.rules.base.rule import BuiltInRule
from traincheck.rules.shared.losses import loss_violation
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event, StepEvent
from traincheck.schema.findings import Violation
from traincheck.schema.torch_api import Families


class NoValidLabel(BuiltInRule, code="TC314", severity="error"):
    """no-valid-label: all labels equal ignore_index.

    What it checks:
        Each call of cross_entropy and nll_loss has at least one label that is not ignored.

    Why it matters:
        The mean over no label is NaN. One such batch turns all parameters into NaN.

    Fires on:
        - A batch whose labels are all ignore_index (-100), with reduction="mean". Every label was
          masked as prompt, or truncated away.
        - The same with reduction="sum", if backward() then starts from NaN because the sum was
          divided by the number of valid labels.

    Stays quiet on:
        - Batches with a valid label.
        - reduction="sum" and "none", if the loss is finite.
        - Losses without gradients.

    Fix:
        Remove such samples from the data, or skip such batches.

    Source:
        https://github.com/pytorch/pytorch/issues/75181
    """

    title = "{subject} is given a batch without a valid label"
    likely_cause = (
        "All labels of the batch at step {step} are ignore_index, e.g. as they are masked as "
        "prompt or padding, or truncated away. The mean over no label is NaN."
    )
    fix = "Drop samples without labels from the data, or skip such batches."
    needs = loss_needs(CROSS_ENTROPY, NLL) | Needs(calls=frozenset({Families.BACKWARD}))

    def __init__(self) -> None:
        super().__init__()
        self._sum: CallEvent | None = (
            None  # call without valid labels, until backward() shows its effect
        )

    def observe(self, event: Event) -> list[Violation]:
        if isinstance(event, CallEvent) and (event.family or event.api) == Families.BACKWARD:
            call, self._sum = self._sum, None
            loss = recorded.loss_of(event)
            return [self._violation(call)] if call and loss is not None and math.isnan(loss) else []
        if isinstance(event, StepEvent):
            self._sum = None
        call = as_loss(event, (CROSS_ENTROPY, NLL))
        if call is None:
            return []
        if call.args.get("reduction", "mean") == "mean":
            return [self._violation(call)] if self._is_of_none(call) else []
        self._sum = call if self._is_of_none(call) else None
        return []

    def _is_of_none(self, call: CallEvent) -> bool:
        target = given(call, "target")
        known = bounds(target)
        if target is None or "int" not in target.dtype or known is None:
            return False
        self.triggered += 1
        return bool(known[0] == known[1] == recorded.ignored_label(call))

    def _violation(self, call: CallEvent) -> Violation:
        ignored = recorded.ignored_label(call)
        target = given(call, "target")
        shape = list(target.shape) if target else "the"
        return loss_violation(
            self.code,
            call,
            f"all labels of a batch are {ignored}, which the loss ignores",
            expected="at least one label that is not ignored",
            observed=f"{shape} labels, all {ignored}",
        )


class SingleClass(BuiltInRule, code="TC315", severity="error"):
    """single-class: cross_entropy is given one output for each sample.

    What it checks:
        The class dim of the input of cross_entropy has more than one class.

    Why it matters:
        The softmax over one number is always one, so the loss and all gradients are zero.

    Fires on:
        - A model with one output for a yes-or-no question, trained with CrossEntropyLoss.

    Stays quiet on:
        - Two or more outputs.
        - Other losses.
        - Losses without gradients.

    Fix:
        Use binary_cross_entropy_with_logits, or two outputs.

    Source:
        https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html
    """

    title = "cross_entropy over a single class is always zero"
    likely_cause = "The last layer has one output, and softmax over one output is always one."
    fix = "Use binary_cross_entropy_with_logits for one output, or give the model two outputs."
    needs = loss_needs(CROSS_ENTROPY, numbers=False)

    def observe(self, event: Event) -> list[Violation]:
        call = as_loss(event, (CROSS_ENTROPY,))
        logits = None if call is None else given(call, "input")
        if call is None or logits is None or not logits.shape:
            return []
        self.triggered += 1
        if class_count(logits.shape) != 1:
            return []
        return [
            loss_violation(
                self.code,
                call,
                "cross_entropy has only one class, so it is always zero",
                expected="at least two classes",
                observed=f"input {list(logits.shape)}",
            )
        ]


_BATCH, _ROWS = 3, 2  # dims of batched log_probs; dims of targets padded to one length


class CtcBlankInTargets(
    BuiltInRule, code="TC325", severity="error", aliases=("blank-among-labels",)
):
    """ctc-blank-in-targets: ctc_loss is given its blank as a label.

    What it checks:
        No label of ctc_loss is the index of the blank.

    Why it matters:
        The blank marks that there is no label. As a label it creates paths that cannot be decoded.
        The model learns to end early, or never learns the character with index 0. The loss falls
        all the same.

    Fires on:
        - Unpadded targets in one row that contain the blank.
        - Padded targets that contain the blank while every target length is the full length, so
          padding counts as labels.

    Stays quiet on:
        - Padding with the blank after the target lengths.
        - Labels from 1 on with blank=0.
        - A separate blank index after the last class.
        - Different lengths, since the position of the blank is then unknown.
        - Losses without gradients.

    Fix:
        Pass the lengths before padding, and start labels at 1 or pass blank=number of classes.

    Source:
        https://docs.pytorch.org/docs/stable/generated/torch.nn.CTCLoss.html
    """

    title = "{subject} is given its blank as a label"
    likely_cause = (
        "target_lengths may count padding, or the class numbers start at the index of the blank."
    )
    fix = "Pass the lengths before padding. Reserve one index for the blank."
    needs = loss_needs(CTC)

    def observe(self, event: Event) -> list[Violation]:
        call = as_loss(event, (CTC,))
        if call is None:
            return []
        targets, blank = given(call, "targets"), call.args.get("blank", 0)
        known = bounds(targets)
        if known is None or not _are_all_labels(call):
            return []
        self.triggered += 1
        return [self._violation(call, blank)] if blank in known else []

    def _violation(self, call: CallEvent, blank: object) -> Violation:
        return loss_violation(
            self.code,
            call,
            f"{blank} is the blank of ctc_loss, but also one of its labels",
            expected=f"labels other than {blank}",
            observed=f"some labels are {blank}, none of them padding",
        )


def _are_all_labels(call: CallEvent) -> bool:
    """Whether the lengths exclude no element of targets as padding."""
    targets, log_probs = given(call, "targets"), given(call, "log_probs")
    if targets is None or log_probs is None or len(log_probs.shape) != _BATCH:
        return False
    if len(targets.shape) != _ROWS:  # concatenated in one row
        return True
    return _extremes(call) == (targets.shape[1],) * 2


def _extremes(call: CallEvent) -> tuple[float | None, float | None]:
    """The smallest and the largest target length."""
    lengths = call.args.get("target_lengths")
    if isinstance(lengths, list):
        found = [length for length in lengths if isinstance(length, int)]
        return (min(found), max(found)) if found and len(found) == len(lengths) else (None, None)
    return bounds(given(call, "target_lengths")) or (None, None)
