"""Means of losses: micro-batches of unequal size, reductions that are mixed."""

from __future__ import annotations

import math

from traincheck.readings import recorded
from traincheck.readings.losses import CROSS_ENTROPY, F, as_loss, given, loss_needs
from traincheck.rules.base.rule import BuiltInRule, EventRule
from traincheck.rules.shared.losses import loss_violation
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import IGNORED_LABEL, TARGETED, Families, losses
from traincheck.schema.values import number as number_of


class MicroBatchesWeightedEqually(
    BuiltInRule, code="TC320", aliases=("micro-batches-weighted-alike",)
):
    """micro-batches-weighted-equally: the mean over labels is taken per micro-batch.

    What it checks:
        If gradients of several micro-batches are accumulated, each with a mean over its valid
        labels, all have about the same number of valid labels.

    Why it matters:
        A label in a short micro-batch weighs more than one in a long micro-batch. The gradient
        differs from that of the large batch, and the difference grows with the spread of lengths.

    Fires on:
        - cross_entropy with reduction="mean", accumulated over micro-batches of tokens of which one
          has several times as many valid labels as another.

    Stays quiet on:
        - Losses that are summed and divided by the number of all labels.
        - Micro-batches with about the same number of labels.
        - Labels without ignore_index, e.g. in classification.

    Fix:
        Use reduction="sum" and divide by the number of valid labels of all micro-batches.

    Source:
        https://github.com/huggingface/transformers/pull/34191, https://github.com/huggingface/trl/issues/2175

    Options:
        - ratio: greatest number of valid labels of a micro-batch divided by the least, in one step.
    """

    title = "Micro-batches of different length get the same weight"
    likely_cause = (
        "{subject} takes the mean over the valid labels of each micro-batch, and the means are "
        "added up: {observed}."
    )
    fix = 'Use reduction="sum" and divide by the valid labels of all micro-batches together.'
    needs = loss_needs(CROSS_ENTROPY) | Needs(calls=frozenset({Families.BACKWARD}))

    def __init__(self, ratio: float = 2.0) -> None:
        super().__init__()
        self._ratio = ratio
        self._waiting: list[tuple[CallEvent, int]] = []  # losses since the last backward
        self._counts: list[tuple[CallEvent, int]] = []  # one per micro-batch

    def observe(self, event: Event) -> list[Violation]:
        if isinstance(event, StepEvent):
            counts, self._counts, self._waiting = self._counts, [], []
            backwards = event.counters.get("backward", 0)
            if len(counts) < 2 or len(counts) != backwards:  # noqa: PLR2004  # no accumulation
                return []
            if event.counters.get("optimizer_step", 0) != 1 or not event.complete:
                return []
            self.triggered += 1
            least, most = (pick(n for _, n in counts) for pick in (min, max))
            if not least or most < self._ratio * least:
                return []
            observed = (
                f"{least} to {most} valid labels in the {len(counts)} micro-batches of a step"
            )
            return [
                loss_violation(
                    self.code,
                    counts[0][0],
                    f"means over {observed} are added with the same weight",
                    expected="each label has the same weight",
                    observed=observed,
                )
            ]
        call = as_loss(event, (CROSS_ENTROPY,))
        if call is not None:
            valid = _valid(call)
            if valid is not None:
                self._waiting.append((call, valid))
        elif isinstance(event, CallEvent) and (event.family or event.api) == Families.BACKWARD:
            if len(self._waiting) == 1:
                self._counts += self._waiting
            self._waiting = []
        return []


def _valid(call: CallEvent) -> int | None:
    """Number of labels in a mean if some are ignored, or None if it is unknown."""
    if call.args.get("reduction", "mean") != "mean":
        return None
    if recorded.ignored_label(call) != IGNORED_LABEL:
        return None
    target = given(call, "target")
    ignored = recorded.ignored(target)
    if target is None or ignored is None:
        return None
    return round((1 - ignored) * math.prod(target.shape))


_LOSSES = TARGETED | losses("distribution") | {f"{F}gaussian_nll_loss"}
_MEANS = frozenset({"mean", "batchmean"})


class ReductionsMixed(EventRule, code="TC321", severity="info"):
    """reductions-mixed: sums and means over a batch are trained on together.

    What it checks:
        The losses of a training step are all sums, or all means.

    Why it matters:
        A sum grows with the batch and a mean does not. Their relative weight changes with the batch
        size, and the mean hardly counts.

    Fires on:
        - Several steps in a row, each with a loss of reduction="sum" and one of reduction="mean".

    Stays quiet on:
        - Losses that return all elements (reduction="none").
        - Losses of evaluation.
        - A single loss.
        - Sums that are divided, e.g. by a number of boxes: backward() gets a value below them.

    Fix:
        Use one reduction, and weight the terms by explicit factors.

    Options:
        - steps: number of steps in a row that prove the fault.

    Source:
        https://github.com/pytorch/examples/issues/234
    """

    title = "Sums and means of losses are mixed"
    likely_cause = "Terms of the loss have different reductions{where}: {observed}."
    fix = "Use one reduction for all terms, and weight them by explicit factors."
    needs = Needs(calls=_LOSSES | {Families.BACKWARD}, kinds=frozenset({"step"}))

    def __init__(self, steps: int = 3) -> None:
        super().__init__()
        self.steps = steps
        self._sums: list[CallEvent] = []
        self._mean: CallEvent | None = None
        self._mixed: tuple[CallEvent, CallEvent] | None = None  # losses before one backward pass
        self._count = 0
        self._first: int | None = None

    def judge(self, event: Event) -> list[Violation]:
        if self.is_over:
            return []
        if isinstance(event, StepEvent):
            return self._step(event)
        if isinstance(event, CallEvent):
            if (event.family or event.api) == Families.BACKWARD:
                if self._sums and self._mean is not None:
                    given = number_of(event.args.get("tensors"))
                    total = sum(number_of(call.result) or 0.0 for call in self._sums)
                    if not (given is not None and given < total):
                        self._mixed = (self._sums[-1], self._mean)
                self._clear()
            elif event.grad_enabled and event.exception is None and event.stage == "train":
                reduction = event.args.get("reduction")
                if reduction == "sum":
                    self._sums.append(event)
                elif reduction in _MEANS:
                    self._mean = event
        return []

    def _clear(self) -> None:
        self._sums.clear()
        self._mean = None

    def _step(self, event: StepEvent) -> list[Violation]:
        mixed, self._mixed = self._mixed, None
        self._clear()
        if not event.counters.get("backward"):
            return []
        self.triggered += 1
        if mixed is None:
            self._count = 0
            return []
        if not self._count:
            self._first = event.step
        self._count += 1
        if self._count < self.steps:
            return []
        self.is_over = True
        summed, mean = mixed
        names = tuple(call.api.removeprefix(F) for call in mixed)
        return [
            self.violation(
                event,
                step=self._first,
                stage="train",
                subject=Subject(api=summed.api),
                symptom=Symptom.ADVICE,
                message=f"a sum of {names[0]} and a mean of {names[1]} are trained on together",
                expected="one reduction for all terms of a loss",
                observed=f"{names[0]} with reduction='sum', {names[1]} with "
                f"reduction='{mean.args.get('reduction')}'",
                evidence=(summed, mean),
            )
        ]
