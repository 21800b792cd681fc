"""The learning rate of the first or last group alone is changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from traincheck.readings.hyperparameters import Course
from traincheck.rules.ledger.in_force_rule import InForceRule, line, subject
from traincheck.schema.findings import Symptom, Violation
from traincheck.schema.values import Value

_UPDATES = 3  # after the last change
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
        if event is None or group.since < _UPDATES or group.last == group.first:
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
