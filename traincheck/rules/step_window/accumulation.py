"""Accumulation windows: the last one is short, or the loss is not divided."""

from __future__ import annotations

from collections import Counter

from traincheck.readings import recorded
from traincheck.readings.losses import scale_of
from traincheck.readings.scalars import alone
from traincheck.rules.base.rule import EventRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import HUBER, TARGETED, Families
from traincheck.schema.words import counted

_PROOF = 2  # number of smaller windows, one at the end of each epoch


class PartialAccumulationWindow(EventRule, code="TC214", severity="info"):
    """partial-accumulation-window: some optimizer steps accumulate fewer batches.

    What it checks:
        If nearly all optimizer steps accumulate the gradients of the same number of batches, all
        steps do, and no batches are left over when the run ends.

    Why it matters:
        The loss is divided by the usual number, so a smaller window makes a smaller update once per
        epoch. Batches left over at the end are lost. Batches carried over mix two epochs.

    Fires on:
        - A number of batches in the loader that is not a multiple of the accumulation steps.

    Stays quiet on:
        - Training without accumulation.
        - Loops with several backward passes per batch.
        - Windows whose size varies all the time.
        - One smaller window.
        - Smaller windows from some step on.

    Fix:
        Divide the loss by the number of batches in this window, or use drop_last.

    Options:
        - windows: number of whole windows that must come first.

    Source:
        https://github.com/huggingface/transformers/pull/34191
    """

    title = "A window of gradient accumulation has fewer batches than the others"
    likely_cause = "The number of batches is not a multiple of the accumulation steps: {observed}."
    fix = "Divide the loss by the number of batches in the window, or drop the incomplete window."
    needs = Needs(
        calls=frozenset({Families.BACKWARD, Families.OPTIMIZER_STEP}),
        kinds=frozenset({"batch", "step"}),
    )

    def __init__(self, windows: int = 3) -> None:
        super().__init__()
        self.windows = windows
        self._sizes: Counter[int] = Counter()
        self._smaller: list[StepEvent] = []
        self._was_smaller = False  # the previous window was smaller

    def judge(self, event: Event) -> list[Violation]:
        if not isinstance(event, StepEvent) or self.is_over:
            return []
        counters = event.counters
        size = counters.get("backward", 0)
        if not event.recorded:
            self.is_over = True
        if self.is_over or not size or counters.get("batch", 0) != size:
            return []
        usual = self._usual()
        is_whole = counters.get("optimizer_step") == 1 and event.complete
        self.triggered += is_whole and size > 1
        if (
            usual is None
            or size >= usual
            or not (is_whole or (not event.complete and not event.counters.get("optimizer_step")))
        ):
            self._sizes[size] += is_whole
            self._was_smaller = False
            return []
        if is_whole and self._smaller and self._was_smaller:  # windows have this size from here on
            self._sizes, self._smaller = Counter({size: len(self._smaller) + 1}), []
            return []
        self._was_smaller = True
        self._smaller.append(event)
        if is_whole and len(self._smaller) < _PROOF:
            return []
        self.is_over = True
        first = self._smaller[0] if is_whole else event
        what = "has" if is_whole else "is left at the end of the run with"
        batches = counted(size, "batch")
        return [
            self.violation(
                event,
                step=first.step,
                subject=Subject(api=Families.OPTIMIZER_STEP),
                symptom=Symptom.ADVICE,
                message=f"a window of gradient accumulation {what} {batches}, not {usual}",
                expected=f"{usual} batches for each optimizer step, as before",
                observed=batches,
                evidence=(first,),
            )
        ]

    def _usual(self) -> int | None:
        """The size that all windows so far share."""
        if len(self._sizes) != 1:
            return None
        size, count = next(iter(self._sizes.items()))
        return size if size > 1 and count >= self.windows else None


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

    def judge(self, event: Event) -> list[Violation]:
        if self.is_over:
            return []
        if isinstance(event, CallEvent):
            if event.api in _LOSSES:
                is_mean = event.args.get("reduction") == "mean" and event.grad_enabled
                self._loss = recorded.value_of(event.result) if is_mean else None
            elif (event.family or event.api) == Families.OPTIMIZER_STEP:
                if any(call.span > event.span for call in self._same):
                    self.is_over = True  # a closure: each pass uses the same batch
            elif (event.family or event.api) == Families.BACKWARD:
                loss, self._loss = self._loss, None
                scale = None if loss is None else scale_of(event, loss)
                if scale is not None and abs(scale - 1) <= _EXACT and alone(event) is not None:
                    self._same.append(event)
        elif isinstance(event, StepEvent):
            return self._step(event)
        return []

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
            self.is_over = True  # the loss is divided, or not a plain mean
            return []
        self._count += 1
        self._first = self._first or event
        if self._count < self.windows:
            return []
        self.is_over = True
        return [
            self.violation(
                event,
                step=self._first.step,
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
