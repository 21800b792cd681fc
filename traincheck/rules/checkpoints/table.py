"""Rules about saving, loading and averages of weights, by code."""

from __future__ import annotations

from traincheck.rules.checkpoints.tc601_state_dict_keys_mismatch import StateDictKeysMismatch
from traincheck.rules.checkpoints.tc602_optimizer_not_restored import OptimizerNotRestored
from traincheck.rules.checkpoints.tc603_scheduler_not_restored import SchedulerNotRestored
from traincheck.rules.checkpoints.tc604_state_not_copied import StateNotCopied
from traincheck.rules.checkpoints.tc605_optimizer_saved_in_part import OptimizerSavedInPart
from traincheck.rules.checkpoints.tc606_loaded_weight_lost_by_tying import LoadedWeightLostByTying
from traincheck.rules.checkpoints.tc607_data_order_differs_after_resume import (
    DataOrderDiffersAfterResume,
)
from traincheck.rules.checkpoints.tc608_weights_reset_during_training import (
    WeightsResetDuringTraining,
)
from traincheck.rules.checkpoints.tc609_scaler_not_restored import ScalerNotRestored
from traincheck.rules.checkpoints.tc610_random_state_not_restored import RandomStateNotRestored
from traincheck.rules.checkpoints.tc611_averaged_model_not_restored import AveragedModelNotRestored
from traincheck.rules.checkpoints.tc612_step_count_reset_on_resume import StepCountResetOnResume
from traincheck.rules.checkpoints.tc613_initialized_after_load import InitializedAfterLoad
from traincheck.rules.checkpoints.tc614_averaged_model_never_updated import (
    AveragedModelNeverUpdated,
)
from traincheck.schema.protocols import Rule

RULES: tuple[Rule, ...] = (
    StateDictKeysMismatch(),
    OptimizerNotRestored(),
    SchedulerNotRestored(),
    StateNotCopied(),
    OptimizerSavedInPart(),
    LoadedWeightLostByTying(),
    DataOrderDiffersAfterResume(),
    WeightsResetDuringTraining(),
    ScalerNotRestored(),
    RandomStateNotRestored(),
    AveragedModelNotRestored(),
    StepCountResetOnResume(),
    InitializedAfterLoad(),
    AveragedModelNeverUpdated(),
)
