"""Losses of one step are reduced in different ways. Compares the arguments of calls."""

from __future__ import annotations

from traincheck.readings.losses import F
from traincheck.rules.base.rule import EventRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import TARGETED, Families, losses
from traincheck.schema.values import number

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
        self._is_over = False

    def judge(self, event: Event) -> list[Violation]:
        if self._is_over:
            return []
        if isinstance(event, StepEvent):
            return self._step(event)
        if isinstance(event, CallEvent):
            self._call(event)
        return []

    def _call(self, event: CallEvent) -> None:
        if (event.family or event.api) == Families.BACKWARD:
            if self._sums and self._mean is not None and not self._is_divided(event):
                self._mixed = (self._sums[-1], self._mean)
            self._clear()
        elif event.grad_enabled and event.exception is None and event.stage == "train":
            reduction = event.args.get("reduction")
            if reduction == "sum":
                self._sums.append(event)
            elif reduction in _MEANS:
                self._mean = event

    def _is_divided(self, backward: CallEvent) -> bool:
        given = number(backward.args.get("tensors"))
        total = sum(number(call.result) or 0.0 for call in self._sums)
        return given is not None and given < total

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
        self._is_over = True
        summed, mean = mixed
        names = tuple(call.api.removeprefix(F) for call in mixed)
        return [
            Violation(
                check_id=self.code,
                step=self._first,
                rank=event.rank,
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
