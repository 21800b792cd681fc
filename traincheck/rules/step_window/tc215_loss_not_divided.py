"""Accumulated losses are summed, not averaged. Compares the numbers of single calls."""

from __future__ import annotations

from traincheck.rules.base.rule import EventRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import HUBER, TARGETED, Families
from traincheck.schema.values import tensor_summary

_LOSSES = TARGETED - {HUBER}
_EXACT = 1e-6  # relative


class LossNotDivided(EventRule, code="TC215", severity="info"):
    """loss-not-divided: mean losses of a window are added up.

    What it checks:
        If an optimizer steps once for several batches, backward() gets the mean loss of a batch
        divided by something, not the mean itself.

    Why it matters:
        The gradient is too large by the number of batches in the window. The learning rate,
        clipping and weight decay mean something different than without accumulation.

    Fires on:
        - Several windows in a row in which every backward() gets exactly the result of a loss with
          reduction="mean".

    Stays quiet on:
        - Losses that are divided or scaled by anything.
        - Sums.
        - Several losses per batch.
        - Closures, e.g. of LBFGS.
        - Training without accumulation.

    Fix:
        Divide the loss by the number of batches per step.

    Options:
        - windows: number of windows in a row that prove the fault.

    Source:
        https://github.com/openai/guided-diffusion/issues/111
    """

    title = "Mean losses of accumulated batches are added up"
    likely_cause = "backward(){where} gets the mean loss of each batch undivided: {observed}."
    fix = "Divide the loss by the number of batches for each optimizer step."
    needs = Needs(
        calls=frozenset({Families.BACKWARD, Families.OPTIMIZER_STEP}) | _LOSSES,
        kinds=frozenset({"batch", "step"}),
    )

    def __init__(self, windows: int = 3) -> None:
        super().__init__()
        self.windows = windows
        self._loss: float | None = None
        self._same: list[CallEvent] = []  # backward passes of this step that got an undivided mean
        self._first: StepEvent | None = None
        self._count = 0
        self._is_over = False

    def judge(self, event: Event) -> list[Violation]:
        if self._is_over:
            return []
        if isinstance(event, CallEvent):
            self._call(event)
        elif isinstance(event, StepEvent):
            return self._step(event)
        return []

    def _call(self, event: CallEvent) -> None:
        if event.api in _LOSSES:
            is_mean = event.args.get("reduction") == "mean" and event.grad_enabled
            self._loss = _value(event.result) if is_mean else None
        elif (event.family or event.api) == Families.OPTIMIZER_STEP:
            if any(call.span > event.span for call in self._same):
                self._is_over = True  # a closure: each pass uses the same batch
        elif (event.family or event.api) == Families.BACKWARD:
            given, loss = _value(event.args.get("tensors")), self._loss
            self._loss = None
            if given is not None and loss and abs(given - loss) <= _EXACT * abs(loss):
                self._same.append(event)

    def _step(self, event: StepEvent) -> list[Violation]:
        same, self._same = self._same, []
        counters = event.counters
        size = counters.get("backward", 0)
        if not event.recorded or not event.complete or counters.get("optimizer_step") != 1:
            self._count, self._first = 0, None
            return []
        batches = counters.get("batch") or counters.get("forward", 0)
        if size <= 1 or batches != size:
            self._count, self._first = 0, None
            return []
        self.triggered += 1
        if len(same) != size:
            self._is_over = True  # the loss is divided, or not a plain mean
            return []
        self._count += 1
        self._first = self._first or event
        if self._count < self.windows:
            return []
        self._is_over = True
        return [
            Violation(
                check_id=self.code,
                step=self._first.step,
                rank=event.rank,
                stage=event.stage,
                subject=Subject(api=Families.BACKWARD),
                symptom=Symptom.ADVICE,
                message=(
                    f"the mean losses of {size} batches are added up for one optimizer step, so "
                    f"the gradient is {size} times that of their mean"
                ),
                expected=f"each loss divided by {size}",
                observed=f"backward() gets the undivided loss {size} times for each step",
                evidence=(same[-1],),
            )
        ]


def _value(value: object) -> float | None:
    tensor = tensor_summary(value)
    found = None if tensor is None else tensor.value
    return float(found) if isinstance(found, (int, float)) else None
