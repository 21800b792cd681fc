"""A schedule counts updates but is stepped per epoch, or the reverse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from traincheck.readings.loader_epochs import Passes
from traincheck.readings.step_facts import DISCOVERY, GRADIENTS, Moment, StepFacts
from traincheck.rules.base.rule import fresh
from traincheck.rules.base.step_rule import StepRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.places import short
from traincheck.schema.torch_api import LAST_MILESTONE, SCHEDULE_LENGTHS, TRAINING_STEPS, Families
from traincheck.schema.values import number

_WHOLE = (*(name for name in SCHEDULE_LENGTHS if name != "T_0"), TRAINING_STEPS)
_IN_EPOCHS = (LAST_MILESTONE, "T_0")  # TC217 covers a cosine, TC210 a rate of zero
_LONG = 20  # calls: for a shorter schedule, numbers can agree by coincidence
_EXACT = 0.02
_RARE = 1.9  # times fewer calls than the schedule is built for
_ENDS = 10  # training may continue after the last call for this part of the time between two calls
_EPOCHS = 3
_UPDATES = 10  # per epoch
_OFTEN = 0.1  # allowed deviation from one call per update


class SchedulerSteppedPerEpoch(StepRule, code="TC221", aliases=("schedule-in-another-unit",)):
    """scheduler-stepped-per-epoch: scheduler.step() is called by epoch for a count of updates.

    What it checks:
        A schedule built for as many calls as there were updates, or batches, is stepped for each of
        them. A schedule whose numbers are epochs is not stepped at each update.

    Why it matters:
        A schedule built for updates and stepped per epoch stays in its warm-up for all of training.
        A schedule built for epochs and stepped per update is over within the first epoch.

    Fires on:
        - At the end of the run, OneCycleLR, a cosine, or a schedule of transformers that is as long
          as there were updates or batches (within two percent), and was stepped at most half as
          often. It is stepped e.g. per epoch, or per window of accumulation.
        - At the end of the run, MultiStepLR whose last milestone, or CosineAnnealingWarmRestarts
          whose T_0, is no more than the number of trained epochs, and which was stepped at every
          update, with at least ten updates per whole epoch.

    Stays quiet on:
        - Schedules of epochs stepped per epoch.
        - Training that ends early.
        - A single call.
        - Steps that GradScaler skips.
        - step(epoch), whose argument may be a fraction.
        - Several schedulers of one optimizer.
        - Resumed runs.
        - Runs with missing steps.

    Fix:
        Call scheduler.step() as often as the schedule counts: after each update for a schedule in
        updates (in Lightning, "interval": "step"), after each epoch for a schedule in epochs.

    Source:
        https://github.com/pytorch/pytorch/issues/65417
    """

    title = "A schedule is stepped in another unit than it is built for"
    likely_cause = (
        "The schedule counts updates and scheduler.step() is called per epoch, or the reverse: "
        "{observed}."
    )
    fix = (
        'Call scheduler.step() after each update (in Lightning, "interval": "step"), or build '
        "the schedule for the real number of calls."
    )
    needs = (
        DISCOVERY
        | GRADIENTS
        | Needs(
            calls=frozenset({Families.SCHEDULER_STEP, Families.SCHEDULER_CREATED}),
            kinds=frozenset({"batch", "checkpoint"}),
        )
    )
    _plans: dict[str, _Plan] = fresh(dict)
    _came: Counter[str] = fresh(Counter)  # batches of each loader before this step
    _last: StepFacts | None = None
    _is_lost = False

    def judge(self, facts: StepFacts) -> list[Violation]:
        self._last = facts
        self._is_lost |= not facts.event.recorded
        if self._is_lost:
            self._plans.clear()
            return []
        for moment in facts.moments:
            if moment.call.exception is None:
                owner = str(moment.call.owner)
                plan = self._plans.get(owner)
                if moment.family == Families.BACKWARD:
                    for name, its in self._plans.items():
                        holder = self.ledger.holders.get(name)
                        if holder is not None and not moment.reached.isdisjoint(holder.ids):
                            its.backward(moment)
                elif moment.family == Families.SCHEDULER_CREATED:
                    self._plans[owner] = _Plan(moment.call, self._came)
                    self._plans[owner].is_plain = (
                        plan is None and moment.call.args.get("last_epoch") == -1
                    )
                elif plan is not None and moment.family == Families.SCHEDULER_STEP:
                    plan.step(moment.call)
                elif plan is not None and moment.family == Families.OPTIMIZER_STEP:
                    plan.update(moment, self.ledger.passes)
        self._came = self.ledger.passes.batches.copy()
        return []

    def finish(self) -> list[Violation]:
        found = []
        for owner, plan in sorted(self._plans.items()):
            # Whether the schedule may have started at any of its steps.
            is_judged = (
                plan.is_plain
                and plan.calls > 1
                and not any(name == plan.cls or "optim" in name for name in self.ledger.loaded)
            )
            if is_judged and plan.updates and owner in self.ledger.holders:
                self.triggered += 1
                label = self.ledger.holders[owner].label
                found += self._rare(plan, label) or self._often(plan, label)
        return found

    def _rare(self, plan: _Plan, label: str) -> list[Violation]:
        """Violations of a schedule in updates or batches that is stepped less often."""
        length = plan.length(_WHOLE)
        units = {"updates": plan.updates, "batches": plan.batches(self.ledger.passes)}
        exact = max(1, length * _EXACT)
        unit = next((u for u, count in units.items() if abs(length - count) <= exact), None)
        is_over = plan.since * plan.calls * _ENDS <= plan.updates
        if unit is None or length < _LONG or plan.calls * _RARE > length or not is_over:
            return []
        made = f"it is built for {length:g} {unit}"
        if unit == "batches":
            made += f", which are {plan.updates} updates,"
        return [self._violation(plan, f"{made} and stepped {plan.calls} times", label)]

    def _often(self, plan: _Plan, label: str) -> list[Violation]:
        """Violations of a schedule in epochs that is stepped at each update."""
        length = plan.length(_IN_EPOCHS)
        epochs = plan.epochs(self.ledger.passes)
        is_often = abs(plan.calls - plan.updates) <= plan.updates * _OFTEN
        is_long = epochs >= _EPOCHS and plan.updates >= epochs * _UPDATES
        if not (is_often and is_long and 0 < length <= epochs):
            return []
        is_steps = LAST_MILESTONE in plan.made.args
        made = f"{'its last milestone' if is_steps else 'T_0'} is {length:g}"
        how = f"{made}, and it is stepped {plan.calls} times in {epochs} epochs"
        fix = (
            "Call scheduler.step() once per epoch, or give the numbers of its schedule in updates."
        )
        return [replace(self._violation(plan, how, label), fix=fix)]

    def _violation(self, plan: _Plan, how: str, label: str) -> Violation:
        assert plan.call is not None
        assert self._last is not None  # both are known once the scheduler has stepped
        places = [short(call.where) for call in (plan.made, plan.call)]
        name = plan.cls.rpartition(".")[2]
        lines = f"built at {places[0]}, stepped at {places[1]}"
        return self.proof(
            self._last,
            step=plan.call.step,
            subject=Subject(api=Families.SCHEDULER_STEP),
            symptom=Symptom.SCHEDULE,
            message=f"{name} of {label} is stepped in another unit: {how}",
            expected=f"{name}.step() as often as its schedule counts",
            observed=f"{name} is {lines}; {how}",
            evidence=(plan.call, plan.made),
        )


@dataclass(slots=True)
class _Plan:
    """The schedule of one optimizer since it was built.

    Attributes:
        made: the call that built it.
        came: batches of each loader before the step in which it was built.
        call: the first call of step().
        backwards: calls of backward() since then, by the loader of the last batch.
        since: updates after the last call of step().
        loaders: the loaders whose batches the optimizer trains on.
        before: whole passes over these loaders at its first update.
        is_plain: whether nothing else affects the rate.
    """

    made: CallEvent
    came: Counter[str]
    call: CallEvent | None = None
    calls: int = 0
    updates: int = 0
    backwards: Counter[str] = field(default_factory=Counter)
    since: int = 0
    loaders: set[str] = field(default_factory=set)
    before: Counter[str] | None = None
    is_plain: bool = True

    @property
    def cls(self) -> str:
        return self.made.api.rpartition(".")[0]

    def step(self, call: CallEvent) -> None:
        """Note a step of the scheduler."""
        is_own = call.api.rpartition(".")[0] == self.cls
        self.is_plain &= is_own and not call.args  # step(epoch) sets the position
        self.call = self.call or call
        self.calls += 1
        self.since = 0

    def update(self, moment: Moment, passes: Passes) -> None:
        """Note a step of the optimizer."""
        self.updates += 1
        self.since += 1
        if moment.batch is not None:
            self.loaders.add(moment.batch[0])
        if self.before is None:
            self.before = passes.ended.copy()

    def epochs(self, passes: Passes) -> int:
        """Whole passes over the loader with the most passes."""
        before = passes.ended if self.before is None else self.before
        return max((passes.whole(one) - before[one] for one in self.loaders), default=0)

    def backward(self, moment: Moment) -> None:
        """Note that gradients of its parameters are computed."""
        self.backwards[moment.batch[0] if moment.batch is not None else ""] += 1

    def batches(self, passes: Passes) -> int:
        """Batches with at least one backward(). Accelerate fetches one batch ahead."""
        fetched = passes.batches - self.came
        return sum(min(n, fetched[loader]) if loader else n for loader, n in self.backwards.items())

    def length(self, names: Sequence[str]) -> float:
        """The first of these numbers that is recorded, or 0 if none is."""
        found = (number(self.made.args.get(name)) for name in names)
        return next((length for length in found if length is not None), 0)
