"""TC216: the optimizer that a scheduler was made for is not the one that trains any more."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from traincheck.rules._ledger import DISCOVERY, GRADIENTS, StepFacts, StepMonitor, proof
from traincheck.schema.apis import Families
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent
from traincheck.schema.findings import CheckInfo, Subject, Symptom, Violation

_CONFIRMED = 2


class SchedulerOfAnotherOptimizer:
    """TC216 scheduler-of-another-optimizer: a schedule changes the rate of an idle optimizer.

    What it checks:
        Between two steps of a scheduler, its optimizer steps, unless none of the same parameters
        does.

    Why it matters:
        The schedule has no effect. The optimizer that trains keeps the rate it began with, and
        the moments of the one before are lost.

    Fires on:
        Two steps in a row of a scheduler whose optimizer has not stepped since its step before,
        while another one stepped that was made later, holds parameters of it and has a rate of its
        own: an optimizer made anew in each epoch, or after the scheduler.

    Stays quiet on:
        Wrappers that share groups and so the rate with the optimizer inside; optimizers of other
        parameters (GAN); optimizers that take turns; schedulers that are not stepped.

    Fix:
        Make the optimizer once, before the scheduler; where it must be made anew, make the
        scheduler anew with it.

    Source:
        https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate
    """

    info = CheckInfo(
        check_id="TC216",
        kind="rule",
        code="TC216",
        severity="warning",
        title="A scheduler is stepped whose optimizer does not train",
        likely_cause="The optimizer was made anew after the scheduler: {observed}.",
        fix=(
            "Make the optimizer once, before the scheduler; where it must be made anew, make the "
            "scheduler anew with it."
        ),
    )
    needs = DISCOVERY | GRADIENTS | Needs(calls=frozenset({Families.SCHEDULER_STEP}))

    def monitor(self) -> Idle:
        return Idle()


@dataclass(slots=True)
class _Schedule:
    """Of the schedulers of one optimizer.

    stepped: optimizers that did since its step before, and in which step first. in_vain: such steps
    in a row; first: since when another optimizer trains.
    """

    stepped: dict[str, int | None] = field(default_factory=dict)
    has_begun: bool = False
    in_vain: int = 0
    first: int | None = None


class Idle(StepMonitor):
    """Follows which optimizers step from one step of a scheduler to the next."""

    def __init__(self) -> None:
        super().__init__()
        self._schedules: dict[str, _Schedule] = {}
        self._made: dict[str, int] = {}  # when, in ns
        self._stepped: dict[str, int] = {}  # last

    def judge(self, facts: StepFacts) -> list[Violation]:
        if facts.is_gap:
            self._schedules.clear()
            return []
        for owner, holder in self.ledger.holders.items():
            self._made.setdefault(owner, holder.event.time_ns)
        found: list[Violation] = []
        for moment in facts.moments:
            owner = str(moment.call.owner)
            if owner not in self.ledger.holders:
                continue
            if moment.family == Families.OPTIMIZER_STEP:
                self._stepped[owner] = moment.call.time_ns
                for schedule in self._schedules.values():
                    schedule.stepped.setdefault(owner, facts.event.step)
            elif moment.family == Families.SCHEDULER_STEP:
                found += self._step(owner, moment.call, facts)
        return found

    def _step(self, owner: str, call: CallEvent, facts: StepFacts) -> list[Violation]:
        schedule = self._schedules.setdefault(owner, _Schedule())
        stepped, schedule.stepped = schedule.stepped, {}
        had_begun, schedule.has_begun = schedule.has_begun, True
        if not had_begun:
            return []
        self.triggered += 1
        others = [other for other in stepped if self._takes_the_place(other, owner, facts)]
        if owner in stepped or not others:
            schedule.in_vain = 0
            return []
        schedule.in_vain += 1
        if schedule.in_vain == 1:
            schedule.first = stepped[min(others)]
        if schedule.in_vain != _CONFIRMED:
            return []
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
        found = proof(
            ("TC216", Symptom.SCHEDULE),
            facts,
            step=step,
            subject=Subject(api=Families.SCHEDULER_STEP),
            message=(
                f"a scheduler changes the learning rate of {idle.label}, which does not step; "
                f"{active.label} trains the same parameters"
            ),
            expected="the optimizer of a scheduler steps between its steps",
            observed=f"it belongs to {idle.label}, but {active.label} steps in its place",
            evidence=[call, active.made],
        )
        if not active.made.where:
            return found
        place = active.made.where.rpartition("/")[2]
        cause = f"The optimizer was made anew after the scheduler ({place}): {found.observed}."
        return replace(found, likely_cause=cause)
