"""The program reduces the learning rate by hand until updates have no effect."""

from __future__ import annotations

from collections.abc import Sequence

from traincheck.readings.hyperparameters import Course
from traincheck.rules.ledger.in_force_rule import InForceRule, line, subject
from traincheck.schema.findings import Symptom, Violation

_UPDATES = 20
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
        if faint < max(_UPDATES, _SHARE * course.updates) or event is None:
            return None
        first, last = groups[0].peak, groups[0].last
        return self.violation(
            event,
            subject=subject(course),
            symptom=Symptom.SCHEDULE,
            message=f"the learning rate of {course.label} falls to almost zero",
            expected=f"a rate that is not far below {first:g}",
            observed=(
                f"the rate of {course.label}{line(course.made.where)} falls from {first:g} to "
                f"{last:.2g}, below a millionth in the last {faint} of {course.updates} updates"
            ),
            evidence=(course.made, event),
        )
