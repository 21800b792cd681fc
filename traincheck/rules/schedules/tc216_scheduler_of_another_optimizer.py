"""A scheduler was built for an optimizer that no longer trains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from traincheck.readings.step_facts import DISCOVERY, GRADIENTS, StepFacts
from traincheck.rules.base.rule import fresh
from traincheck.rules.base.step_rule import StepRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.places import short
from traincheck.schema.torch_api import Families

_CONFIRMED = 2
_MANY = 20  # steps of the optimizer that trains


class SchedulerOfAnotherOptimizer(StepRule, code="TC216"):
    """scheduler-of-another-optimizer: a schedule changes the rate of an idle optimizer.

    What it checks:
        Between two steps of a scheduler its optimizer steps, unless no optimizer of the same
        parameters does.

    Why it matters:
        The schedule has no effect. The optimizer that trains keeps its initial rate, and the
        moments of the previous optimizer are lost.

    Fires on:
        - Two steps in a row of a scheduler whose optimizer has not stepped since the previous
          scheduler step. Meanwhile a later optimizer stepped that shares parameters with it and has
          a different rate. Example: an optimizer that is rebuilt in each epoch, or after the
          scheduler.
        - At the end of the run, a scheduler of an optimizer that never stepped. Meanwhile an
          optimizer that shares parameters with it stepped at least twenty times, at one rate and
          without its own scheduler.

    Stays quiet on:
        - Wrappers that share parameter groups, and so the rate, with the optimizer inside.
        - Optimizers of other parameters (GAN).
        - Optimizers that alternate, or one of which trains later.
        - Schedulers that are not stepped.

    Fix:
        Build the optimizer once, before the scheduler, and build the scheduler for the optimizer
        that trains. If the optimizer must be rebuilt, rebuild the scheduler with it.

    Source:
        https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate
    """

    title = "A scheduler is stepped, but its optimizer does not train"
    likely_cause = "The optimizer may have been rebuilt after the scheduler was built: {observed}."
    fix = (
        "Build the optimizer once, before the scheduler. If the optimizer must be rebuilt, "
        "rebuild the scheduler with it."
    )
    needs = DISCOVERY | GRADIENTS | Needs(calls=frozenset({Families.SCHEDULER_STEP}))
    _schedules: dict[str, _Schedule] = fresh(dict)
    _made: dict[str, int] = fresh(dict)  # creation time in ns
    _stepped: dict[str, int] = fresh(dict)  # time of the last step in ns
    _updates: Counter[str] = fresh(Counter)
    _rates: dict[str, Sequence[float]] = fresh(dict)  # first rates
    _moved: set[str] = fresh(set)  # optimizers whose rates changed
    _last: StepFacts | None = None
    _is_lost = False

    def judge(self, facts: StepFacts) -> list[Violation]:
        if facts.is_gap:
            self._schedules.clear()
            self._is_lost = True
            return []
        self._last = facts
        for owner, rates in facts.event.lr.items():
            if self._rates.setdefault(owner, rates) != rates:
                self._moved.add(owner)
        for owner, holder in self.ledger.holders.items():
            self._made.setdefault(owner, holder.event.time_ns)
        found: list[Violation] = []
        for moment in facts.moments:
            owner = str(moment.call.owner)
            if owner not in self.ledger.holders:
                continue
            if moment.family == Families.OPTIMIZER_STEP:
                self._stepped[owner] = moment.call.time_ns
                self._updates[owner] += 1
                for schedule in self._schedules.values():
                    schedule.stepped.setdefault(owner, facts.event.step)
            elif moment.family == Families.SCHEDULER_STEP:
                found += self._step(owner, moment.call, facts)
        return found

    def finish(self) -> list[Violation]:
        """Report optimizers that never stepped. Only now can they no longer train later."""
        if self._is_lost or self._last is None:
            return []
        found: list[Violation] = []
        for owner, schedule in self._schedules.items():
            others = [one for one in schedule.others if self._trains_alone(one, schedule)]
            is_idle = owner not in self._stepped and owner in self._moved - self.reported
            if others and is_idle and schedule.call is not None:
                call, other = schedule.call, min(others)
                one = self._violation(owner, other, call, call.step, self._last)
                idle, active = (self.ledger.holders[name].label for name in (owner, other))
                cause = (
                    f"The scheduler was built for {idle}, which never steps. {active} trains "
                    "instead."
                )
                fix = "Build the scheduler for the optimizer that trains."
                found.append(replace(one, likely_cause=cause, fix=fix))
        return found

    def _trains_alone(self, other: str, schedule: _Schedule) -> bool:
        """Whether it trained for long at one rate and without a scheduler."""
        is_long = self._updates[other] >= _MANY and schedule.others[other] >= _CONFIRMED
        return is_long and other in self._rates.keys() - self._moved - self._schedules.keys()

    def _step(self, owner: str, call: CallEvent, facts: StepFacts) -> list[Violation]:
        schedule = self._schedules.setdefault(owner, _Schedule())
        stepped, schedule.stepped = schedule.stepped, {}
        had_begun, schedule.has_begun = schedule.has_begun, True
        if not had_begun:
            return []
        self.triggered += 1
        if owner not in self._stepped:
            held = self.ledger.holders[owner].ids
            sharing = [o for o in stepped if not self.ledger.holders[o].ids.isdisjoint(held)]
            schedule.others.update(sharing)
            schedule.call = schedule.call or (call if sharing else None)
        others = [other for other in stepped if self._takes_the_place(other, owner, facts)]
        if owner in stepped or not others:
            schedule.unused = 0
            return []
        schedule.unused += 1
        if schedule.unused == 1:
            schedule.first = stepped[min(others)]
        if schedule.unused != _CONFIRMED:
            return []
        self.reported.add(owner)
        return [self._violation(owner, min(others), call, schedule.first, facts)]

    def _takes_the_place(self, other: str, owner: str, facts: StepFacts) -> bool:
        holders, rates = self.ledger.holders, facts.event.lr
        if holders[other].ids.isdisjoint(holders[owner].ids):
            return False
        is_later = max(self._made[owner], self._stepped.get(owner, 0)) < self._made[other]
        return is_later and rates.get(other) != rates.get(owner)

    def _violation(
        self, owner: str, other: str, call: CallEvent, step: int | None, facts: StepFacts
    ) -> Violation:
        idle, active = (self.ledger.holders[name] for name in (owner, other))
        found = self.proof(
            facts,
            step=step,
            subject=Subject(api=Families.SCHEDULER_STEP),
            symptom=Symptom.SCHEDULE,
            message=f"a scheduler changes the learning rate of {idle.label}, which does not step; "
            f"{active.label} trains the same parameters",
            expected="the optimizer of a scheduler steps between its steps",
            observed=f"the scheduler belongs to {idle.label}, but {active.label} steps in its "
            "place",
            evidence=[call, active.made],
        )
        if not active.made.where:
            return found
        place = short(active.made.where)
        cause = f"The optimizer was rebuilt after the scheduler ({place}): {found.observed}."
        return replace(found, likely_cause=cause)


@dataclass(slots=True)
class _Schedule:
    """The schedulers of one optimizer.

    Attributes:
        stepped: optimizers that stepped since the previous scheduler step, with the first step.
        unused: scheduler steps in a row without effect.
        first: the step since which another optimizer trains.
        others: optimizers that stepped instead, with the number of scheduler steps.
        call: the first scheduler step for which another optimizer stepped.
    """

    stepped: dict[str, int | None] = field(default_factory=dict)
    has_begun: bool = False
    unused: int = 0
    first: int | None = None
    others: Counter[str] = field(default_factory=Counter)
    call: CallEvent | None = None
