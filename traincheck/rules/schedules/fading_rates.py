"""The learning rate of one optimizer over its schedule. Reports nothing itself."""

from __future__ import annotations

from dataclasses import dataclass, field

from traincheck.readings.step_facts import Moment, StepFacts
from traincheck.schema.events import CallEvent
from traincheck.schema.torch_api import Families

SCHEDULING = frozenset({Families.SCHEDULER_STEP, Families.SCHEDULER_CREATED})

# Fraction of the largest rate. A tenth taken six times is not below it, however rounded.
_TINY = 0.999e-6
_FALLEN = 1e-3  # fraction of the largest rate before the fall: rates set by hand jump
_UPDATES = 20
_SHARE = 0.1  # of all updates
_STEPS = 3  # of the scheduler: a schedule by epoch may end or turn with a single one
_PLATEAU = "ReduceLROnPlateau"


@dataclass(slots=True)
class Fading:
    """The largest rate of the groups since the schedule was built.

    Attributes:
        tiny: updates in a row with a negligible part of it.
        steps: scheduler steps during these updates.
        last: the rate before these updates.
        now: the rate in the last of them.
        first: the step of the first of them.
        follows_metric: whether the schedule depends on a metric, so its course is unknown.
    """

    largest: float = 0.0
    updates: int = 0
    last: float = 0.0
    now: float = 0.0
    tiny: int = 0
    steps: int = 0
    first: int | None = None
    follows_metric: bool = False

    def advance(self, call: CallEvent) -> None:
        """Note a step of the scheduler."""
        self.follows_metric |= _PLATEAU in call.api
        self.steps += self.tiny > 0

    def update(self, rate: float, step: int | None) -> None:
        """Note an update with gradients at this rate."""
        self.updates += 1
        self.largest, self.now = max(self.largest, rate), rate
        if rate >= self.largest * _TINY:
            self.last, self.tiny, self.steps = rate, 0, 0
            return
        self.first = step if self.tiny == 0 else self.first
        self.tiny += 1

    @property
    def is_over(self) -> bool:
        """Whether training and its schedule go on for long at a negligible rate."""
        is_long = self.tiny >= max(_UPDATES, _SHARE * self.updates) and self.steps >= _STEPS
        return is_long and self.last < self.largest * _FALLEN and not self.follows_metric


@dataclass(slots=True)
class Rate:
    """The rate of one optimizer.

    Attributes:
        advanced: scheduler steps in a row since backward() or the previous step.
        often: number of scheduler steps each time, since which step, and the call.
        idle: updates with a rate of zero before any other rate.
        kept: how many of the idle updates followed another scheduler step.
        waits: idle updates since the last scheduler step, or since the scheduler was built.
    """

    was_positive: bool = False
    zeros: int = 0
    first_zero: int | None = None
    advanced: int = 0
    idle: int = 0
    kept: int = 0
    waits: int = 0
    first_idle: tuple[Moment, StepFacts] | None = None
    often: int = 0
    often_since: int | None = None
    call: CallEvent | None = None
    made: CallEvent | None = None
    fading: Fading = field(default_factory=Fading)
    is_reported: bool = False

    def schedule(self, moment: Moment) -> None:
        """Note that a scheduler was built or stepped."""
        call, self.waits = moment.call, 0
        if moment.family == Families.SCHEDULER_CREATED:
            self.made, self.fading = call, Fading()
            return
        self.fading.advance(call)
        last = self.call
        is_same = last is not None and (last.api, last.where) == (call.api, call.where)
        self.advanced = self.advanced + 1 if is_same else 1
        self.call = call

    def rest(self, moment: Moment, facts: StepFacts, *, is_advanced: bool) -> None:
        """Note an update with a rate of zero before any other rate."""
        self.first_idle = self.first_idle or (moment, facts)
        self.idle += 1
        self.waits += 1
        self.kept += is_advanced

    def count(self, facts: StepFacts) -> None:
        """Note an update and how often the scheduler was stepped for it."""
        advanced, self.advanced = self.advanced, 0
        backwards = sum(m.family == Families.BACKWARD for m in facts.moments)
        if advanced <= 1 or backwards > 1:
            self.often, self.often_since = 0, None
        elif advanced != self.often:
            self.often, self.often_since = advanced, facts.event.step
