"""TC210: training goes on after the schedule has brought the learning rate to zero."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from traincheck.rules._ledger import DISCOVERY, GRADIENTS, Moment, StepFacts, StepMonitor, proof
from traincheck.schema.apis import Families
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent
from traincheck.schema.findings import CheckInfo, Subject, Symptom, Violation

_SCHEDULING = frozenset({Families.SCHEDULER_STEP, Families.SCHEDULER_CREATED})
_IDLE = 10  # steps of a run without any other rate
_KEPT = 10  # times that a scheduler may leave a first rate at zero


class LearningRateExhausted:
    """TC210 learning-rate-exhausted: the learning rate is zero and training goes on.

    What it checks:
        Once the learning rate of an optimizer has been above zero, it steps no more than a few
        times with a rate of exactly zero in all its groups. Without a scheduler, the rate is above
        zero at all; with one, it leaves zero within ten steps of the scheduler.

    Why it matters:
        Nothing is learned from there on. Often the schedule was built for fewer steps than are
        taken, or a library advances it several times for each optimizer step, once for each
        process.

    Fires on:
        Three steps in a row with a rate of zero after one above it. Where the scheduler has been
        stepped several times in a row for each optimizer step, at the first of these. A run of ten
        steps or more, each of which had gradients to apply and a rate of zero, and no scheduler. A
        scheduler that is stepped ten times, with updates between, and leaves a first rate of
        zero at zero: a warm-up that divides whole numbers.

    Stays quiet on:
        Warm-up from zero that rises; a last step with a rate of zero; some groups at zero;
        schedules that are advanced several times a step and last until the end.

    Fix:
        Build the schedule for the number of scheduler steps that are really made.

    Options:
        steps: steps in a row with a rate of zero.

    Source:
        https://github.com/huggingface/accelerate/issues/2142, https://github.com/huggingface/transformers/pull/24088
    """

    info = CheckInfo(
        check_id="TC210",
        kind="rule",
        code="TC210",
        severity="warning",
        title="The learning rate is zero while training goes on",
        likely_cause="The schedule{where} ends before training does: {observed}.",
        fix=(
            "Build the schedule for as many steps as the scheduler is stepped, or step it once for "
            "each optimizer step."
        ),
    )
    needs = DISCOVERY | GRADIENTS | Needs(calls=_SCHEDULING)

    def __init__(self, steps: int = 3) -> None:
        self.steps = steps

    def monitor(self) -> Exhaustion:
        return Exhaustion(self.steps)


@dataclass(slots=True)
class _Rate:
    """Of one optimizer.

    advanced: scheduler steps in a row since backward() or the step before; often: how many each
    time, since which step, and the call. idle: steps with a rate of zero before any other; kept:
    how many of them came after another step of the scheduler.
    """

    was_positive: bool = False
    zeros: int = 0
    first_zero: int | None = None
    advanced: int = 0
    idle: int = 0
    kept: int = 0
    first_idle: tuple[Moment, StepFacts] | None = None
    often: int = 0
    often_since: int | None = None
    call: CallEvent | None = None


class Exhaustion(StepMonitor):
    """Follows the rate of each optimizer.

    Args:
        steps: steps in a row with a rate of zero.
    """

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._steps = steps
        self._rates: dict[str, _Rate] = {}
        self._before: Mapping[str, Sequence[float]] = {}
        self._has_scheduler = False

    def judge(self, facts: StepFacts) -> list[Violation]:
        found: list[Violation] = []
        before, self._before = self._before, facts.event.lr
        if not facts.is_whole:
            return []
        for moment in facts.moments:
            owner = str(moment.call.owner)
            self._has_scheduler |= moment.family in _SCHEDULING
            if owner in self.ledger.holders and moment.family == Families.SCHEDULER_STEP:
                self._advance(self._rates.setdefault(owner, _Rate()), moment)
        for moment in facts.updates():
            owner = str(moment.call.owner)
            if owner in self.ledger.holders:
                rate = self._rates.setdefault(owner, _Rate())
                was_idle, is_advanced = rate.idle, rate.advanced > 0
                self._count(rate, facts)
                found += self._step(owner, rate, before.get(owner), moment, facts)
                if is_advanced and rate.idle > was_idle:
                    rate.kept += 1
                    found += [self._idle(owner, rate)] if rate.kept == _KEPT else []
        return found

    def _advance(self, rate: _Rate, moment: Moment) -> None:
        call = moment.call
        is_same = rate.call is not None and (rate.call.api, rate.call.where) == (
            call.api,
            call.where,
        )
        rate.advanced = rate.advanced + 1 if is_same else 1
        rate.call = call

    def _count(self, rate: _Rate, facts: StepFacts) -> None:
        advanced, rate.advanced = rate.advanced, 0
        backwards = sum(m.family == Families.BACKWARD for m in facts.moments)
        if advanced <= 1 or backwards > 1:
            rate.often, rate.often_since = 0, None
        elif advanced != rate.often:
            rate.often, rate.often_since = advanced, facts.event.step

    def _step(
        self,
        owner: str,
        rate: _Rate,
        before: Sequence[float] | None,
        moment: Moment,
        facts: StepFacts,
    ) -> list[Violation]:
        now = facts.event.lr.get(owner)
        if now and moment.applied and not rate.was_positive and not any((*(before or ()), *now)):
            rate.idle += 1
            rate.first_idle = rate.first_idle or (moment, facts)
        if not before or not now or not moment.applied:
            return []
        if any(value != 0 for value in before) or any(value != 0 for value in now):
            rate.was_positive = rate.was_positive or any(value for value in before)
            rate.zeros = 0
            return []
        if not rate.was_positive or rate.call is None:
            return []
        self.triggered += 1
        rate.first_zero = facts.event.step if rate.zeros == 0 else rate.first_zero
        rate.zeros += 1
        return [self._violation(owner, rate, moment, facts)] if rate.zeros == self._steps else []

    def finish(self) -> list[Violation]:
        found = []
        for owner, rate in sorted(self._rates.items()):
            if rate.was_positive or rate.idle < _IDLE or self._has_scheduler:
                continue
            found.append(self._idle(owner, rate))
        return found

    def _idle(self, owner: str, rate: _Rate) -> Violation:
        assert rate.first_idle is not None
        moment, facts = rate.first_idle
        label = self.ledger.holders[owner].label
        if self._has_scheduler:
            subject, often = Subject(api=Families.SCHEDULER_STEP), f"for {_KEPT} steps of it"
            cause = f"The schedule{{where}} keeps the rate of {label} at zero {often}."
            fix = "Look at what the schedule gives for its first steps: 1 // 100 is zero."
        else:
            subject, often = Subject(api=Families.OPTIMIZER_STEP), f"in all {rate.idle} steps"
            cause = f"{label} was built with a learning rate of zero."
            fix = "Give the optimizer a learning rate above zero: lr=..."
        return replace(
            self._violation(owner, rate, moment, facts),
            step=facts.event.step,
            subject=subject,
            message=f"{label} has a learning rate of zero from the beginning, {often}",
            observed=f"the rate of {label} is 0 {often}",
            likely_cause=cause,
            fix=fix,
        )

    def _violation(self, owner: str, rate: _Rate, moment: Moment, facts: StepFacts) -> Violation:
        label = self.ledger.holders[owner].label
        often = (
            f"the scheduler is stepped {rate.often} times for each step of {label}"
            if rate.often
            else f"the rate reaches zero before step {rate.first_zero}"
        )
        calls = [call for call in (rate.call, moment.call) if call is not None]
        return proof(
            ("TC210", Symptom.SCHEDULE),
            facts,
            step=rate.often_since if rate.often else rate.first_zero,
            subject=Subject(api=Families.SCHEDULER_STEP),
            message=(
                f"{often}, and {label} goes on with a learning rate of zero (from step "
                f"{rate.first_zero} on)"
            ),
            expected="a learning rate above zero while there are gradients to apply",
            observed=often,
            evidence=calls,
        )
