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
from traincheck.rules.schedules.tc217_cosine_past_t_max import CosinePastTMax
from traincheck.rules.schedules.tc220_plateau_mode_mismatch import PlateauModeMismatch
from traincheck.rules.schedules.tc221_scheduler_stepped_per_epoch import SchedulerSteppedPerEpoch
from traincheck.rules.schedules.tc222_lambda_lr_returns_rate import LambdaLrReturnsRate
from traincheck.schema.protocols import Rule

RULES: tuple[Rule, ...] = (
    SchedulerBeforeOptimizer(),
    LearningRateExhausted(),
    SchedulerNeverStepped(),
    SchedulerSteppedByBatchAndEpoch(),
    SchedulerOfAnotherOptimizer(),
    CosinePastTMax(),
    PlateauModeMismatch(),
    SchedulerSteppedPerEpoch(),
    LambdaLrReturnsRate(),
)
