"""A function passed to LambdaLR returns the rate, which is then multiplied by the rate again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from traincheck.readings.step_facts import DISCOVERY, StepFacts
from traincheck.rules.base.rule import fresh
from traincheck.rules.base.step_rule import StepRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families
from traincheck.schema.values import number

_LAMBDA = "torch.optim.lr_scheduler.LambdaLR"
_EXACT = 1e-6  # relative
_STEPS = 10  # scheduler steps
_SETTLED = 5  # steps without a larger rate: not a warm-up that happens to end here
_MOST = 0.2  # as an initial rate: one half may be a factor


class LambdaLrReturnsRate(StepRule, code="TC222", aliases=("rate-multiplied-twice",)):
    """lambda-lr-returns-rate: LambdaLR multiplies a rate by itself.

    What it checks:
        The largest rate that LambdaLR sets is not the square of the optimizer's initial rate.

    Why it matters:
        LambdaLR multiplies the initial rate by the result of its function. A function that returns
        the rate itself turns 0.01 into 0.0001: training continues a hundred times too slowly.

    Fires on:
        - At the end of the run, LambdaLR is the only scheduler of an optimizer and was stepped at
          least ten times. The largest rate of each group was its initial rate squared, to six
          digits, long before the end.

    Stays quiet on:
        - Functions that return a factor.
        - A warm-up that passes this value, or has reached it when the run ends.
        - Initial rates of more than 0.2, because one half may be a factor.
        - Other schedulers beside it.
        - Resumed runs.
        - Runs with missing steps.

    Fix:
        Let the function return a factor, 1 for the initial rate. Or give the optimizer lr=1.0.

    Source:
        https://docs.pytorch.org/docs/stable/generated/torch.optim.lr_scheduler.LambdaLR.html
    """

    title = "LambdaLR multiplies the learning rate by itself"
    likely_cause = (
        "The function passed to LambdaLR{where} may return a rate, not a factor of the "
        "initial rate: {observed}."
    )
    fix = "Let the function return a factor, 1 for the initial rate, or give the optimizer lr=1.0."
    needs = DISCOVERY | Needs(
        calls=frozenset({
            Families.OPTIMIZER_STEP, Families.SCHEDULER_STEP, Families.SCHEDULER_CREATED
        }),
        kinds=frozenset({"checkpoint"}),
    )  # fmt: skip
    _courses: dict[str, _Course] = fresh(dict)
    _last: StepFacts | None = None
    _is_lost = False

    def judge(self, facts: StepFacts) -> list[Violation]:
        self._last = facts
        self._is_lost |= not facts.event.recorded
        if self._is_lost:
            self._courses.clear()
            return []
        # A scheduler step after the update belongs to the next: the rates are those of the update.
        for moment in facts.moments:
            if moment.call.exception is None:
                owner = str(moment.call.owner)
                course = self._courses.get(owner)
                if moment.family == Families.SCHEDULER_CREATED:
                    call = moment.call
                    is_first = course is None and call.args.get("last_epoch") == -1
                    self._courses[owner] = _Course(
                        call, is_first and call.api == f"{_LAMBDA}.__init__"
                    )
                elif course is not None and moment.family == Families.SCHEDULER_STEP:
                    course.step(moment.call)
                elif course is not None and moment.family == Families.OPTIMIZER_STEP:
                    course.update(facts.event.lr.get(owner, ()), facts.event.step)
        return []

    def finish(self) -> list[Violation]:
        found = []
        for owner, course in sorted(self._courses.items()):
            holder = self.ledger.holders.get(owner)
            # Whether a schedule may have started at any of its steps, with any rate.
            if (
                holder is None
                or not course.is_over
                or any(name == _LAMBDA or "optim" in name for name in self.ledger.loaded)
            ):
                continue
            self.triggered += 1
            # The initial rate of each group, or 0 if it is unknown.
            hypers = [group.hyper for group in holder.made.groups]
            initial = [number(hyper.get("initial_lr", hyper.get("lr"))) or 0 for hyper in hypers]
            pairs = list(zip(initial, course.largest))
            if len(initial) == len(course.largest) > 0 and all(_is_square(*pair) for pair in pairs):
                wrong = pairs[0]
                assert self._last is not None  # there have been updates
                fact = (
                    f"the largest rate is {wrong[1]:.3g}, the initial rate {wrong[0]:.3g} squared"
                )
                found += self.proven(
                    self._last,
                    step=course.first,
                    subject=Subject(api=Families.SCHEDULER_STEP),
                    symptom=Symptom.SCHEDULE,
                    message=f"LambdaLR of {holder.label}: {fact}",
                    expected=f"a rate of {wrong[0]:.3g} where the function returns 1",
                    observed=fact,
                    evidence=(course.made,),
                )
        return found


@dataclass(slots=True)
class _Course:
    """The rates of one optimizer since its scheduler was built.

    Attributes:
        largest: the largest rate of each group.
        settled: scheduler steps since the largest rate.
        first: the step of the first update.
        is_plain: whether only one LambdaLR affects the rate.
    """

    made: CallEvent
    is_plain: bool
    largest: list[float] = field(default_factory=list)
    calls: int = 0
    settled: int = 0
    first: int | None = None

    def step(self, call: CallEvent) -> None:
        """Note a step of the scheduler."""
        self.is_plain &= call.api == f"{_LAMBDA}.step" and not call.args
        self.calls += 1
        self.settled += 1

    def update(self, rates: Sequence[float], step: int | None) -> None:
        """Note an update at these rates."""
        if not self.largest:
            self.largest, self.first = [0.0] * len(rates), step
        self.is_plain &= len(rates) == len(self.largest)
        if self.is_plain and any(new > old for new, old in zip(rates, self.largest)):
            self.largest = [max(pair) for pair in zip(rates, self.largest)]
            self.settled = 0

    @property
    def is_over(self) -> bool:
        """Whether the schedule has shown its largest rate."""
        return self.is_plain and self.calls >= _STEPS and self.settled >= _SETTLED


def _is_square(initial: float, largest: float) -> bool:
    return 0 < initial <= _MOST and math.isclose(largest, initial * initial, rel_tol=_EXACT)
