"""Training continues after the schedule has brought the learning rate to zero."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from traincheck.readings.step_facts import DISCOVERY, GRADIENTS, Moment, StepFacts
from traincheck.rules.base.rule import fresh
from traincheck.rules.base.step_rule import StepRule
from traincheck.rules.schedules.fading_rates import SCHEDULING, Rate
from traincheck.schema.claims import Needs
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families

_IDLE = 10  # steps of a run that never has another rate
_KEPT = 10  # scheduler steps that may keep an initial rate of zero, or updates before its step


class LearningRateExhausted(StepRule, code="TC210"):
    """learning-rate-exhausted: the learning rate is zero and training goes on.

    What it checks:
        - After its learning rate was above zero, an optimizer steps only a few times with a rate of
          exactly zero in all groups.
        - It does not step for long with a rate that its schedule has reduced to almost zero.
        - Without a scheduler, the rate is above zero at all.
        - With a scheduler, the rate leaves zero within ten scheduler steps and ten updates.

    Why it matters:
        Nothing is learned from there on. Often the schedule was built for too few steps. Or a
        library advances it several times per optimizer step, once for each process.

    Fires on:
        - Three steps in a row with a rate of zero, after a rate above zero. If the scheduler was
          stepped several times in a row for each optimizer step, the first of these steps.
        - A run of ten or more steps without a scheduler, each of which had gradients to apply and a
          rate of zero.
        - A scheduler that is stepped ten times, with updates in between, and keeps an initial rate
          of zero at zero. Example: a warm-up that divides whole numbers.
        - Ten updates of the only optimizer at an initial rate of zero before the scheduler is
          stepped. Example: a warm-up in updates that is stepped per epoch.
        - Less than a millionth of the largest rate in twenty updates and a tenth of all updates,
          while the scheduler goes on. Example: a decay in epochs that is stepped per update.

    Stays quiet on:
        - A warm-up from zero that rises.
        - A last step with a rate of zero.
        - Only some groups at zero.
        - Schedules that are advanced several times per step and last until the end.
        - The tail of a schedule.
        - Rates that follow a metric.
        - Rates that are nearly zero while another optimizer trains.

    Fix:
        Build the schedule for the number of scheduler steps that are really made.

    Options:
        - steps: number of steps in a row with a rate of zero.

    Source:
        https://github.com/huggingface/accelerate/issues/2142, https://github.com/huggingface/transformers/pull/24088
    """

    title = "The learning rate is zero while training goes on"
    title_of_several = "The learning rate of {optimizer} is zero while training goes on"
    likely_cause = "The schedule{where} may end before training does: {observed}."
    fix = (
        "Build the schedule for the real number of scheduler steps, or step it once for each "
        "optimizer step."
    )
    needs = DISCOVERY | GRADIENTS | Needs(calls=SCHEDULING)
    steps: int = 3
    _rates: dict[str, Rate] = fresh(dict)
    _before: Mapping[str, Sequence[float]] = fresh(dict)
    _has_scheduler = False

    def judge(self, facts: StepFacts) -> list[Violation]:
        found: list[Violation] = []
        before, self._before = self._before, facts.event.lr
        if not facts.is_complete:
            for rate in self._rates.values():
                rate.waits = 0  # the scheduler may have been stepped
            return []
        for moment in facts.moments:
            owner, is_schedule = str(moment.call.owner), moment.family in SCHEDULING
            self._has_scheduler |= is_schedule
            if owner in self.ledger.holders and is_schedule:
                self._rates.setdefault(owner, Rate()).schedule(moment)
        for moment in facts.updates():
            owner = str(moment.call.owner)
            if owner in self.ledger.holders:
                rate = self._rates.setdefault(owner, Rate())
                found += self._step(owner, rate, before.get(owner), moment, facts)
                found += self._fade(owner, rate, moment, facts)
        return found

    def _step(
        self,
        owner: str,
        rate: Rate,
        before: Sequence[float] | None,
        moment: Moment,
        facts: StepFacts,
    ) -> list[Violation]:
        now, is_advanced = facts.event.lr.get(owner), rate.advanced > 0
        rate.count(facts)
        if now and moment.applied and not rate.was_positive and not any((*(before or ()), *now)):
            rate.rest(moment, facts, is_advanced=is_advanced)
            # Violations of an initial rate of zero that the schedule does not raise.
            is_only = all(its is rate or not its.fading.updates for its in self._rates.values())
            waits = rate.waits >= _KEPT and rate.made is not None and is_only
            if rate.is_reported or not (waits or rate.kept == _KEPT):
                return []
            rate.is_reported = True
            return [self._idle(owner, rate)]
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
        if rate.zeros != self.steps:
            return []
        rate.is_reported = True
        return [self._violation(owner, rate, moment, facts)]

    def _fade(self, owner: str, rate: Rate, moment: Moment, facts: StepFacts) -> list[Violation]:
        """Violations of a rate that its schedule has reduced to almost zero."""
        now, fading = facts.event.lr.get(owner), rate.fading
        if now and moment.applied:
            fading.update(max(now), facts.event.step)
        others = (its.fading for its in self._rates.values() if its is not rate)
        if rate.is_reported or not fading.is_over or any(o.updates and not o.tiny for o in others):
            return []
        rate.is_reported = True
        fall = f"the rate falls from {fading.largest:.3g} to {fading.now:.3g}"
        label = self.ledger.holders[owner].label
        return [
            replace(
                self._violation(owner, rate, moment, facts),
                title="The learning rate is next to zero while training goes on",
                step=fading.first,
                message=f"{fall}, and {label} keeps stepping with less than a millionth of it "
                f"(from step {fading.first} on)",
                observed=fall,
                fix="Step a schedule for epochs once per epoch, or reduce the rate less.",
            )
        ]

    def finish(self) -> list[Violation]:
        found = []
        for owner, rate in sorted(self._rates.items()):
            if rate.was_positive or rate.idle < _IDLE or self._has_scheduler:
                continue
            found.append(self._idle(owner, rate))
        return found

    def _idle(self, owner: str, rate: Rate) -> Violation:
        assert rate.first_idle is not None
        moment, facts = rate.first_idle
        label = self.ledger.holders[owner].label
        built = [group.hyper.get("lr") for group in self.ledger.holders[owner].made.groups]
        is_scheduled = self._has_scheduler and any(built)  # otherwise there is no rate to multiply
        if is_scheduled and rate.kept < _KEPT:
            subject, often = Subject(api=Families.SCHEDULER_STEP), f"in its first {rate.idle} steps"
            cause = f"The schedule of {label} starts at zero and is not stepped {often}{{where}}."
            fix = "Step a schedule for updates after each update, or start the schedule above zero."
        elif is_scheduled:
            subject, often = Subject(api=Families.SCHEDULER_STEP), f"for {_KEPT} of its steps"
            cause = f"The schedule{{where}} keeps the rate of {label} at zero {often}."
            fix = "Print the values of the schedule for its first steps: 1 // 100 is zero."
        else:
            which = "its first" if self._has_scheduler else "all"  # reported while the run goes on
            subject, often = Subject(api=Families.OPTIMIZER_STEP), f"in {which} {rate.idle} steps"
            cause = f"{label} was built with a learning rate of zero."
            fix = "Give the optimizer a learning rate above zero: lr=..."
        found = self._violation(owner, rate, moment, facts)
        made = () if rate.made is None else (rate.made,)
        return replace(
            found,
            evidence=(*found.evidence, *made),
            step=facts.event.step,
            subject=subject,
            message=f"{label} has a learning rate of zero from the beginning, {often}",
            observed=f"the rate of {label} is 0 {often}",
            likely_cause=cause,
            fix=fix,
        )

    def _violation(self, owner: str, rate: Rate, moment: Moment, facts: StepFacts) -> Violation:
        label = self.ledger.holders[owner].label
        often = (
            f"the scheduler is stepped {rate.often} times for each step of {label}"
            if rate.often
            else f"the rate reaches zero before step {rate.first_zero}"
        )
        calls = [call for call in (rate.call, moment.call) if call is not None]
        return self.proof(
            facts,
            step=rate.often_since if rate.often else rate.first_zero,
            subject=Subject(api=Families.SCHEDULER_STEP),
            symptom=Symptom.SCHEDULE,
            message=f"{often}, and {label} keeps stepping with a learning rate of zero (from step "
            f"{rate.first_zero} on)",
            expected="a learning rate above zero while there are gradients to apply",
            observed=often,
            evidence=calls,
            optimizer=self.ledger.one_of_several(owner),
        )
