"""A schedule writes to parameter groups that the optimizer no longer has."""

from __future__ import annotations

from collections.abc import Sequence

from traincheck.rules.base.rule import fresh
from traincheck.rules.base.step_rule import InForceRule, line, subject
from traincheck.schema.events import Event, MarkEvent
from traincheck.schema.findings import Symptom, Violation
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.loads import OLD_GROUP, IneffectiveWrite
from traincheck.schema.observations.reading import observed

_UPDATES = 2


class ScheduleHoldsOldGroups(InForceRule, code="TC067"):
    """schedule-holds-old-groups: the schedule writes to groups that a load has replaced.

    What it checks:
        After optimizer.load_state_dict(), nothing goes on writing to the groups from before it.

    Why it matters:
        load_state_dict() replaces the dicts in optimizer.param_groups. A schedule that kept the old
        ones computes and prints a rate that no update uses. The rate of the checkpoint stays.

    Fires on:
        A hyper-parameter in a group from before the load changes after it, and the same
        hyper-parameter of the optimizer does not.

    Stays quiet on:
        - Schedules that read optimizer.param_groups at each step, such as those of torch.
        - Schedules that are made after the load.
        - Old groups that nobody writes to.

    Fix:
        Keep the optimizer in the schedule, and read optimizer.param_groups at each step.

    Source:
        https://github.com/microsoft/rat-sql/issues/45
    """

    title = "A schedule writes to parameter groups that the optimizer no longer has"
    likely_cause = (
        "load_state_dict() makes new groups, and the schedule was made with the old ones before it."
    )
    fix = (
        "Make the schedule after optimizer.load_state_dict(), or keep the optimizer in it and read "
        "optimizer.param_groups at each step."
    )
    needs = InForceRule.needs | needs_of(IneffectiveWrite)
    observes = needs_of(IneffectiveWrite)
    _found: dict[str, tuple[MarkEvent, IneffectiveWrite]] = fresh(dict)

    def observe(self, event: Event) -> Sequence[Violation]:
        found = observed(event, IneffectiveWrite)
        if found is not None and found.place == OLD_GROUP and isinstance(event, MarkEvent):
            self._found.setdefault(found.owner, (event, found))
        return ()

    def finish(self) -> Sequence[Violation]:
        result = []
        for owner, course in self.ledger.courses.items():
            self.triggered += bool(course.loads)
            mark, found = self._found.get(owner, (None, None))
            if mark is None or found is None or not course.loads:
                continue
            load = course.loads[-1]
            if load.updates < _UPDATES or (found.name == "lr" and load.varies):
                continue
            observed_text = (
                f"optimizer.load_state_dict(){line(found.where)} replaced the groups of "
                f"{course.label}; {found.name} is set to {found.written} in an old group, and "
                f"updates use {found.in_force}"
            )
            result += self.found(
                mark,
                subject=subject(course),
                symptom=Symptom.SCHEDULE,
                message=f"{found.name} is written to an old group of {course.label}",
                expected=f"{found.name} is written to the groups that {course.label} uses",
                observed=observed_text,
                evidence=(course.made, mark),
            )
        return result
