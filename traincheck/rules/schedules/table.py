"""Rules about learning rate schedules, by code."""

from __future__ import annotations

from traincheck.rules.schedules.tc209_scheduler_before_optimizer import SchedulerBeforeOptimizer
from traincheck.rules.schedules.tc210_learning_rate_exhausted import LearningRateExhausted
from traincheck.rules.schedules.tc211_scheduler_never_stepped import SchedulerNeverStepped
from traincheck.rules.schedules.tc213_scheduler_stepped_by_batch_and_epoch import (
    SchedulerSteppedByBatchAndEpoch,
)
from traincheck.rules.schedules.tc216_scheduler_of_another_optimizer import (
    SchedulerOfAnotherOptimizer,
)
from traincheck.rules.schedules.tc217_cosine_turns_back import CosineTurnsBack
from traincheck.rules.schedules.tc220_plateau_of_the_wrong_kind import PlateauOfTheWrongKind
from traincheck.rules.schedules.tc221_schedule_in_another_unit import ScheduleInAnotherUnit
from traincheck.rules.schedules.tc222_rate_multiplied_twice import RateMultipliedTwice
from traincheck.schema.protocols import Rule

RULES: tuple[Rule, ...] = (
    SchedulerBeforeOptimizer(),
    LearningRateExhausted(),
    SchedulerNeverStepped(),
    SchedulerSteppedByBatchAndEpoch(),
    SchedulerOfAnotherOptimizer(),
    CosineTurnsBack(),
    PlateauOfTheWrongKind(),
    ScheduleInAnotherUnit(),
    RateMultipliedTwice(),
)
