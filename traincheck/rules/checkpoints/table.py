"""Rules about saving, loading and averages of weights, by code."""

from __future__ import annotations

from traincheck.rules.checkpoints.tc601_nothing_loaded import NothingLoaded
from traincheck.rules.checkpoints.tc602_optimizer_not_restored import OptimizerNotRestored
from traincheck.rules.checkpoints.tc603_scheduler_not_restored import SchedulerNotRestored
from traincheck.rules.checkpoints.tc604_state_not_copied import StateNotCopied
from traincheck.rules.checkpoints.tc605_optimizer_saved_in_part import OptimizerSavedInPart
from traincheck.rules.checkpoints.tc606_loaded_weight_given_up import LoadedWeightGivenUp
from traincheck.rules.checkpoints.tc607_epoch_resumed_in_another_order import (
    EpochResumedInAnotherOrder,
)
from traincheck.rules.checkpoints.tc608_training_undone import TrainingUndone
from traincheck.rules.checkpoints.tc609_scaler_not_restored import ScalerNotRestored
from traincheck.rules.checkpoints.tc610_random_state_not_restored import RandomStateNotRestored
from traincheck.rules.checkpoints.tc611_average_forgotten import AverageForgotten
from traincheck.rules.checkpoints.tc612_count_begins_anew import CountBeginsAnew
from traincheck.rules.checkpoints.tc613_initialized_after_load import InitializedAfterLoad
from traincheck.rules.checkpoints.tc614_average_never_updated import AverageNeverUpdated
from traincheck.schema.protocols import Rule

RULES: tuple[Rule, ...] = (
    NothingLoaded(),
    OptimizerNotRestored(),
    SchedulerNotRestored(),
    StateNotCopied(),
    OptimizerSavedInPart(),
    LoadedWeightGivenUp(),
    EpochResumedInAnotherOrder(),
    TrainingUndone(),
    ScalerNotRestored(),
    RandomStateNotRestored(),
    AverageForgotten(),
    CountBeginsAnew(),
    InitializedAfterLoad(),
    AverageNeverUpdated(),
)
