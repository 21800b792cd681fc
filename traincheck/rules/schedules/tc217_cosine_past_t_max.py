"""A cosine schedule is stepped past its end, where the rate rises again."""

from __future__ import annotations

from dataclasses import dataclass

from traincheck.readings.step_facts import DISCOVERY, GRADIENTS, StepFacts
from traincheck.rules.base.rule import fresh
from traincheck.rules.base.step_rule import StepRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families

_COSINE = "torch.optim.lr_scheduler.CosineAnnealingLR.step"
_SURE = 2  # changes in one direction


class CosinePastTMax(StepRule, code="TC217", severity="info", aliases=("cosine-turns-back",)):
    """cosine-past-t-max: a cosine schedule ends before training does, and the rate rises.

    What it checks:
        The learning rate that CosineAnnealingLR has reduced does not rise again.

    Why it matters:
        T_max counts calls of scheduler.step(). With T_max in epochs and a call per batch, the rate
        oscillates through all of training, and training ends at an arbitrary rate.

    Fires on:
        - Two updates in a row with a higher rate than before, after two with a lower one, if
          CosineAnnealingLR is the only scheduler of the optimizer.

    Stays quiet on:
        - Schedules that last until the end.
        - A warm-up before the cosine.
        - CosineAnnealingWarmRestarts, whose rate is meant to rise.

    Fix:
        Set T_max to the number of calls of scheduler.step(), or call it once per epoch.

    Source:
        https://docs.pytorch.org/docs/stable/generated/torch.optim.lr_scheduler.CosineAnnealingLR.html
    """

    title = "A cosine schedule is stepped past its end"
    likely_cause = (
        "T_max is smaller than the number of calls of scheduler.step(){where}: {observed}."
    )
    fix = (
        "Set T_max to the number of calls of scheduler.step(), or call it once per epoch. Use "
        "CosineAnnealingWarmRestarts if the rate is to rise again."
    )
    needs = DISCOVERY | GRADIENTS | Needs(calls=frozenset({Families.SCHEDULER_STEP}))
    _courses: dict[str, _Course] = fresh(dict)

    def judge(self, facts: StepFacts) -> list[Violation]:
        found: list[Violation] = []
        for owner in dict.fromkeys(str(moment.call.owner) for moment in facts.updates()):
            course, rates = self._courses.get(owner), facts.event.lr.get(owner)
            if course is not None and course.is_alone and rates:
                found += self._follow(owner, course, rates[0], facts)
        for moment in facts.moments:
            if moment.family == Families.SCHEDULER_STEP and moment.call.owner is not None:
                course = self._courses.setdefault(moment.call.owner, _Course(moment.call))
                course.is_alone &= moment.call.api == _COSINE
                course.advanced += 1
        return found

    def _follow(
        self, owner: str, course: _Course, rate: float, facts: StepFacts
    ) -> list[Violation]:
        before, course.rate = course.rate, rate
        if before is None or rate == before:
            return []
        self.triggered += 1
        if rate < before:
            course.falls, course.rises = course.falls + 1, 0
            return []
        if course.rises == 0:
            course.first = (facts.event.step, course.advanced, before)
        course.rises += 1
        if (
            course.is_reported
            or course.falls < _SURE
            or course.rises < _SURE
            or course.first is None
        ):
            return []
        course.is_reported = True
        step, advanced, lowest = course.first
        label = self.ledger.holders[owner].label if owner in self.ledger.holders else owner
        return self.proven(
            facts,
            step=step,
            subject=Subject(api=Families.SCHEDULER_STEP),
            symptom=Symptom.ADVICE,
            message=f"the rate of {label} rises again from step {step} on, after {advanced} calls "
            "of scheduler.step()",
            expected="a rate that falls until training ends",
            observed=f"the rate of {label} was {lowest:.3g} and rises after {advanced} calls",
            evidence=(course.call,),
        )


@dataclass(slots=True)
class _Course:
    """The last rate of one optimizer, and its changes in a row downwards and upwards."""

    call: CallEvent
    is_alone: bool = True
    advanced: int = 0
    rate: float | None = None
    falls: int = 0
    rises: int = 0
    first: tuple[int | None, int, float] | None = None  # of the rises: step, calls, rate before
    is_reported: bool = False
