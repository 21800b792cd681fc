"""Rules about training and evaluation mode, by code."""

from __future__ import annotations

from traincheck.rules.modes.tc301_trained_in_eval_mode import TrainedInEvalMode
from traincheck.rules.modes.tc302_evaluated_in_training_mode import EvaluatedInTrainingMode
from traincheck.rules.modes.tc303_dropout_in_evaluation import DropoutInEvaluation
from traincheck.rules.modes.tc304_part_left_in_eval_mode import PartLeftInEvalMode
from traincheck.rules.modes.tc305_spectral_norm_before_training import SpectralNormBeforeTraining
from traincheck.rules.modes.tc306_frozen_model_in_training_mode import FrozenModelInTrainingMode
from traincheck.rules.modes.tc307_initial_norm_statistics import InitialNormStatistics
from traincheck.rules.modes.tc308_stale_norm_statistics import StaleNormStatistics
from traincheck.rules.modes.tc327_train_eval_preprocessing_mismatch import (
    TrainEvalPreprocessingMismatch,
)
from traincheck.rules.modes.tc329_initialized_repeatedly import InitializedRepeatedly
from traincheck.schema.protocols import Rule

RULES: tuple[Rule, ...] = (
    TrainedInEvalMode(),
    EvaluatedInTrainingMode(),
    DropoutInEvaluation(),
    PartLeftInEvalMode(),
    SpectralNormBeforeTraining(),
    FrozenModelInTrainingMode(),
    InitialNormStatistics(),
    StaleNormStatistics(),
    TrainEvalPreprocessingMismatch(),
    InitializedRepeatedly(),
)
