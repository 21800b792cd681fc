"""Learning rates that a program sets, and that do not stay as they were set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from traincheck.readings.optimizers import Course
from traincheck.rules.base.rule import EventRule, fresh
from traincheck.rules.base.step_rule import InForceRule, line, subject
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.loads import OverwrittenRates
from traincheck.schema.observations.reading import observed
from traincheck.schema.torch_api import Families
from traincheck.schema.values import Value

_UPDATES_SINCE = 3  # after the last change
_SEVERAL = 2
# Names that optimizers of torch give their groups. Others mark groups that are told apart.
_COMMON = frozenset(
    {
        "lr", "initial_lr", "weight_decay", "betas", "eps", "momentum", "dampening", "nesterov",
        "amsgrad", "maximize", "foreach", "capturable", "differentiable", "fused", "alpha",
        "centered", "rho", "decoupled_weight_decay", "max_lr", "min_lr", "correct_bias",
    }
)  # fmt: skip


class RateSetForOneGroup(InForceRule, code="TC068"):
    """rate-set-for-one-group: a new learning rate reaches one of several groups.

    What it checks:
        Where all groups of an optimizer begin with one learning rate and the program changes it,
        the change does not reach the first or the last group alone.

    Why it matters:
        The other parameters train with the first rate to the end. A printed rate, which is read
        from the same group, looks right.

    Fires on:
        - optimizer.param_groups[0]["lr"] = lr with two or more groups.
        - A loop over the groups with the assignment behind it.

    Stays quiet on:
        - Groups that begin with different rates.
        - Schedulers of torch, which have a rate for each group.
        - Groups with a name, or with keys of the program that tell them apart.
        - Rates of zero, such as for groups that are frozen at first.

    Fix:
        Set the rate in a loop: for group in optimizer.param_groups: group["lr"] = lr.

    Source:
        https://github.com/pytorch/pytorch/issues/1489, https://github.com/facebookresearch/mae/blob/main/util/lr_sched.py
    """

    title = "A new learning rate reaches only one group of the optimizer"
    likely_cause = "The rate may be set for one index, or behind a loop over the groups."
    fix = 'Set it for all groups: for group in optimizer.param_groups: group["lr"] = lr.'

    def finish(self) -> Sequence[Violation]:
        return [
            violation
            for course in self.ledger.courses.values()
            if (violation := self._judge(course)) is not None
        ]

    def _judge(self, course: Course) -> Violation | None:
        groups = course.groups
        if len(groups) < _SEVERAL or not course.is_followed or course.schedulers or course.loads:
            return None
        if len({group.first for group in groups}) > 1 or any(group.was_zero for group in groups):
            return None
        if _are_told_apart([group.hyper for group in course.made.groups]):
            return None
        self.triggered += 1
        changed = [index for index, group in enumerate(groups) if group.changes]
        if changed not in ([0], [len(groups) - 1]):
            return None
        (index,) = changed
        group = groups[index]
        event = group.changed_in
        if event is None or group.since < _UPDATES_SINCE or group.last == group.first:
            return None
        position = "first" if index == 0 else "last"
        others = (
            "the other group" if len(groups) == _SEVERAL else f"the other {len(groups) - 1} groups"
        )
        observed = (
            f"{course.label}{line(course.made.where)} has {len(groups)} groups with a rate of "
            f"{group.first:g}; the {position} one changes to {group.last:g}, and {others} never"
        )
        return self.violation(
            event,
            subject=subject(course),
            symptom=Symptom.SCHEDULE,
            message=f"the learning rate of only the {position} group of {course.label} is changed",
            expected="the learning rate of all groups",
            observed=observed,
            evidence=(course.made, event),
        )


def _are_told_apart(groups: Sequence[Mapping[str, Value]]) -> bool:
    own: list[dict[str, Value]] = [
        {name: value for name, value in group.items() if name not in _COMMON} for group in groups
    ]
    return any(found != own[0] for found in own)


_TIMES = 3


class RateOverwrittenByScheduler(EventRule, code="TC069"):
    """rate-overwritten-by-scheduler: a scheduler replaces the rates that the program writes.

    What it checks:
        Learning rates that the program writes are used by an update before a scheduler computes new
        ones.

    Why it matters:
        LambdaLR, OneCycleLR, CyclicLR and CosineAnnealingWarmRestarts compute the rate from the
        base rate. A rate that was written in between has no effect at all.

    Fires on:
        Three times, the rate is written between optimizer.step() and scheduler.step().

    Stays quiet on:
        - Rates that an update uses, such as a warm-up by hand while a scheduler waits.
        - Schedulers that multiply the present rate.

    Fix:
        Keep one of the two: compute the rate in the scheduler, or write it and drop the scheduler.

    Source:
        https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate
    """

    title = "A scheduler overwrites the learning rates that the program sets"
    likely_cause = (
        "The program sets the rate between optimizer.step() and scheduler.step(){where}, which "
        "computes it from the base rate."
    )
    fix = (
        "Compute the rate in the scheduler, or drop the scheduler. A write counts only after "
        "scheduler.step() and before optimizer.step()."
    )
    needs = Needs(calls=frozenset({Families.SCHEDULER_STEP})) | needs_of(OverwrittenRates)
    _times: Counter[str] = fresh(Counter)

    def judge(self, event: Event) -> Sequence[Violation]:
        if isinstance(event, CallEvent):
            self.triggered += (event.family or event.api) == Families.SCHEDULER_STEP
        found = observed(event, OverwrittenRates)
        if found is None:
            return ()
        self._times[found.owner] += 1
        if self._times[found.owner] != _TIMES:
            return ()
        name = found.scheduler.rpartition(".")[2]
        triples = zip(found.written, found.used, found.scheduled)
        written, used, scheduled = next(t for t in triples if t[0] not in t[1:])
        violation = self.violation(
            event,
            subject=Subject(api=Families.SCHEDULER_STEP, variable=found.owner),
            symptom=Symptom.SCHEDULE,
            message=f"{name} overwrites the rates that the program writes to {found.owner}",
            expected="an update uses the rate that was written",
            observed=f"a rate of {written:g} was written after the update with {used:g}, and "
            f"{name}.step() set {scheduled:g}; {_TIMES} times so far",
        )
        return [violation]


_FAINT_UPDATES = 20
_SHARE = 0.1  # of all updates


class RateDecayedToNothing(InForceRule, code="TC074"):
    """rate-decayed-to-nothing: a schedule of the program reduces the rate to almost zero.

    What it checks:
        Where the program sets the learning rate itself, training does not go on with less than a
        millionth of the largest rate.

    Why it matters:
        Nothing is learned from there on. Most often a factor that is meant for the first rate is
        applied to the present rate, in each step again.

    Fires on:
        group["lr"] *= 1 - step / total, or a decay per epoch that is applied per update: twenty
        updates at the end, and a tenth of all, with almost no rate in any group.

    Stays quiet on:
        - Schedulers, which TC210 checks.
        - The last updates of a schedule that ends at zero.
        - Some groups of several.
        - Warm-ups that begin with almost no rate.

    Fix:
        Compute the rate from the first one: group["lr"] = base * factor(step).

    Source:
        https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate
    """

    title = "The program reduces the learning rate to almost zero while training goes on"
    likely_cause = (
        "A factor of the first rate may be applied to the present one again and again, or a "
        "decay for epochs in each update."
    )
    fix = 'Compute the rate from the first one: group["lr"] = base * factor(step).'

    def finish(self) -> Sequence[Violation]:
        return [
            violation
            for course in self.ledger.courses.values()
            if (violation := self._judge(course)) is not None
        ]

    def _judge(self, course: Course) -> Violation | None:
        groups = course.groups
        if not course.is_followed or course.schedulers or not any(g.changes for g in groups):
            return None
        self.triggered += 1
        faint = min(group.faint for group in groups)
        event = groups[0].faint_in
        if faint < max(_FAINT_UPDATES, _SHARE * course.updates) or event is None:
            return None
        first, last = groups[0].peak, groups[0].last
        return self.violation(
            event,
            subject=subject(course),
            symptom=Symptom.SCHEDULE,
            message=f"the learning rate of {course.label} falls to almost zero",
            expected=f"a rate that is not far below {first:g}",
            observed=f"the rate of {course.label}{line(course.made.where)} falls from {first:g} to "
            f"{last:.2g}, below a millionth in the last {faint} of {course.updates} updates",
            evidence=(course.made, event),
        )
