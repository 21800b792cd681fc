"""One scheduler is stepped both per batch and per epoch."""

from __future__ import annotations

from dataclasses import dataclass, field

from traincheck.readings.step_facts import DISCOVERY, GRADIENTS, StepFacts
from traincheck.rules.base.rule import fresh
from traincheck.rules.base.step_rule import StepRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.places import short
from traincheck.schema.torch_api import Families

_CONFIRMED = 2


class SchedulerSteppedByBatchAndEpoch(StepRule, code="TC213"):
    """scheduler-stepped-by-batch-and-epoch: two lines advance the same schedule.

    What it checks:
        Two lines do not both advance a schedule between two updates if only one of them advances it
        after other updates.

    Why it matters:
        A schedule counts batches or epochs. Advanced for both, it runs ahead by at least one step
        per epoch and ends before training does.

    Fires on:
        - scheduler.step() inside the loop over batches and again at the end of the epoch, twice,
          for a scheduler of the same class and optimizer.

    Stays quiet on:
        - Schedules advanced per batch or per epoch.
        - A warm-up per batch that is followed by steps per epoch.
        - Schedulers of different classes.
        - Several schedulers that all step for every batch.

    Fix:
        Remove one of the two calls.

    Source:
        https://pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate
    """

    title = "A scheduler is stepped by batch and by epoch"
    likely_cause = (
        "scheduler.step(){where} advances a schedule that another line also advances: {observed}."
    )
    fix = "Call scheduler.step() in one place only, per batch or per epoch as its schedule counts."
    needs = DISCOVERY | GRADIENTS | Needs(calls=frozenset({Families.SCHEDULER_STEP}))
    _schedules: dict[tuple[str, str], _Schedule] = fresh(dict)

    def judge(self, facts: StepFacts) -> list[Violation]:
        if not facts.is_complete:
            for schedule in self._schedules.values():
                schedule.places.clear()
            return []
        found: list[Violation] = []
        for moment in facts.moments:
            call = moment.call
            if moment.family == Families.SCHEDULER_STEP and call.where is not None:
                key = (str(call.owner), call.api)
                self._schedules.setdefault(key, _Schedule()).places[call.where] = call
            elif moment.family in (Families.OPTIMIZER_STEP, Families.SCALER_STEP):
                for (owner, _), schedule in self._schedules.items():
                    if owner == call.owner and schedule.places:
                        found += self._close(schedule, facts)
        return found

    def _close(self, schedule: _Schedule, facts: StepFacts) -> list[Violation]:
        self.triggered += 1
        places, schedule.places = schedule.places, {}
        if len(places) == 1:
            schedule.alone |= places.keys()
            return []
        if schedule.alone.isdisjoint(places) or places.keys() <= schedule.alone:
            return []
        schedule.first = facts.event.step if schedule.mixed == 0 else schedule.first
        schedule.mixed += 1
        if schedule.mixed != _CONFIRMED:
            return []
        often = next(call for where, call in places.items() if where in schedule.alone)
        rare = next(call for where, call in places.items() if where not in schedule.alone)
        name = often.api.split(".")[-2]
        lines = " and ".join(short(call.where) for call in (often, rare))
        return self.proven(
            facts,
            step=schedule.first,
            subject=Subject(api=Families.SCHEDULER_STEP),
            symptom=Symptom.SCHEDULE,
            message=f"{name} is advanced from two lines, {lines}, with no update in between",
            expected=f"one call of {name}.step() per batch or per epoch",
            observed=f"{name}.step() at {lines}",
            evidence=(rare, often),
        )


@dataclass(slots=True)
class _Schedule:
    """The schedule of one scheduler class and optimizer.

    Attributes:
        places: the lines that advanced it since the last update.
        alone: lines that were the only one after some update.
        mixed: how often two lines advanced it, and since which step.
    """

    places: dict[str, CallEvent] = field(default_factory=dict)
    alone: set[str] = field(default_factory=set)
    mixed: int = 0
    first: int | None = None
