"""The rules that come with traincheck, by code."""

from __future__ import annotations

from traincheck.rules.attention.tc316_mask_not_used import MaskNotUsed
from traincheck.rules.attention.tc317_mask_inverted import MaskInverted
from traincheck.rules.attention.tc318_packed_rows_not_separated import PackedRowsNotSeparated
from traincheck.rules.attention.tc324_missing_causal_mask import MissingCausalMask
from traincheck.rules.attention.tc337_softmax_over_queries import SoftmaxOverQueries
from traincheck.rules.batch_content.tc912_mask_attends_to_padding import MaskAttendsToPadding
from traincheck.rules.batch_content.tc913_mostly_padding import MostlyPadding
from traincheck.rules.batch_content.tc916_unknown_tokens import UnknownTokens
from traincheck.rules.batch_content.tc918_unscaled_image import UnscaledImage
from traincheck.rules.batch_content.tc919_flat_batch import FlatBatch
from traincheck.rules.batch_content.tc920_channels_last_batch import ChannelsLastBatch
from traincheck.rules.batch_content.tc921_negative_index import NegativeIndex
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
from traincheck.rules.configuration.tc905_bias_before_norm import BiasBeforeNorm
from traincheck.rules.configuration.tc906_adam_with_decay import AdamWithDecay
from traincheck.rules.configuration.tc907_decay_on_bias_or_norm import DecayOnBiasOrNorm
from traincheck.rules.configuration.tc908_decay_on_embedding import DecayOnEmbedding
from traincheck.rules.configuration.tc909_even_kernel import EvenKernel
from traincheck.rules.configuration.tc910_padding_index_missing import PaddingIndexMissing
from traincheck.rules.configuration.tc911_padding_index_differs import PaddingIndexDiffers
from traincheck.rules.configuration.tc914_tiny_batch_norm import TinyBatchNorm
from traincheck.rules.configuration.tc915_batch_norm_reused import BatchNormReused
from traincheck.rules.configuration.tc917_untied_embedding import UntiedEmbedding
from traincheck.rules.configuration.tc922_layer_reused import LayerReused
from traincheck.rules.configuration.tc923_norm_momentum_reversed import NormMomentumReversed
from traincheck.rules.data.tc501_stream_repeated_by_workers import StreamRepeatedByWorkers
from traincheck.rules.data.tc502_same_batch_on_every_rank import SameBatchOnEveryRank
from traincheck.rules.data.tc503_shuffled_order_repeats import ShuffledOrderRepeats
from traincheck.rules.data.tc504_workers_repeat_random_draws import WorkersRepeatRandomDraws
from traincheck.rules.data.tc505_epochs_repeat_random_draws import EpochsRepeatRandomDraws
from traincheck.rules.data.tc506_labels_in_order import LabelsInOrder
from traincheck.rules.data.tc507_batch_folded_into_one_row import BatchFoldedIntoOneRow
from traincheck.rules.data.tc508_evaluated_on_training_data import EvaluatedOnTrainingData
from traincheck.rules.data.tc510_reseeded_during_training import ReseededDuringTraining
from traincheck.rules.data.tc511_ranks_drift_in_random_numbers import RanksDriftInRandomNumbers
from traincheck.rules.data.tc512_ranks_share_samples import RanksShareSamples
from traincheck.rules.data.tc513_identical_samples import IdenticalSamples
from traincheck.rules.data.tc514_sample_redrawn import SampleRedrawn
from traincheck.rules.data.tc515_ranks_repeat_random_draws import RanksRepeatRandomDraws
from traincheck.rules.data.tc516_sampler_weights_too_few import SamplerWeightsTooFew
from traincheck.rules.data.tc517_batch_not_used import BatchNotUsed
from traincheck.rules.data.tc518_reseeded_per_sample import ReseededPerSample
from traincheck.rules.data.tc519_only_last_batch_used import OnlyLastBatchUsed
from traincheck.rules.efficiency.tc901_unaligned_size import UnalignedSize
from traincheck.rules.efficiency.tc902_channels_first_on_gpu import ChannelsFirstOnGpu
from traincheck.rules.efficiency.tc903_full_precision_on_gpu import FullPrecisionOnGpu
from traincheck.rules.efficiency.tc904_model_off_the_gpu import ModelOffTheGpu
from traincheck.rules.ledger.tc065_loaded_setting_replaces_asked import LoadedSettingReplacesAsked
from traincheck.rules.ledger.tc066_setting_written_elsewhere import SettingWrittenElsewhere
from traincheck.rules.ledger.tc067_schedule_holds_old_groups import ScheduleHoldsOldGroups
from traincheck.rules.ledger.tc068_rate_set_for_one_group import RateSetForOneGroup
from traincheck.rules.ledger.tc069_rate_overwritten_by_scheduler import RateOverwrittenByScheduler
from traincheck.rules.ledger.tc070_metric_for_two_phases import MetricForTwoPhases
from traincheck.rules.ledger.tc071_metric_never_reset import MetricNeverReset
from traincheck.rules.ledger.tc072_drawn_order_lost import DrawnOrderLost
from traincheck.rules.ledger.tc073_dataset_written_when_read import DatasetWrittenWhenRead
from traincheck.rules.ledger.tc074_rate_decayed_to_nothing import RateDecayedToNothing
from traincheck.rules.losses.tc310_cross_entropy_of_probabilities import CrossEntropyOfProbabilities
from traincheck.rules.losses.tc311_logit_loss_of_probabilities import LogitLossOfProbabilities
from traincheck.rules.losses.tc312_nll_loss_without_log import NllLossWithoutLog
from traincheck.rules.losses.tc313_loss_broadcasts import LossBroadcasts
from traincheck.rules.losses.tc314_no_valid_label import NoValidLabel
from traincheck.rules.losses.tc315_single_class import SingleClass
from traincheck.rules.losses.tc319_end_token_not_learned import EndTokenNotLearned
from traincheck.rules.losses.tc320_micro_batches_weighted_equally import MicroBatchesWeightedEqually
from traincheck.rules.losses.tc321_reductions_mixed import ReductionsMixed
from traincheck.rules.losses.tc322_labels_shifted_twice import LabelsShiftedTwice
from traincheck.rules.losses.tc325_ctc_blank_in_targets import CtcBlankInTargets
from traincheck.rules.losses.tc330_target_out_of_range import TargetOutOfRange
from traincheck.rules.losses.tc331_broadcast_in_own_loss import BroadcastInOwnLoss
from traincheck.rules.losses.tc332_padding_among_labels import PaddingAmongLabels
from traincheck.rules.losses.tc333_softmax_over_one_element import SoftmaxOverOneElement
from traincheck.rules.losses.tc334_zero_label_in_margin_loss import ZeroLabelInMarginLoss
from traincheck.rules.losses.tc335_multi_label_cross_entropy import MultiLabelCrossEntropy
from traincheck.rules.losses.tc336_target_outside_activation_range import (
    TargetOutsideActivationRange,
)
from traincheck.rules.losses.tc338_labels_not_shifted import LabelsNotShifted
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
from traincheck.rules.numerics.tc701_non_finite_value import NonFiniteValue
from traincheck.rules.numerics.tc702_exploding_gradient import ExplodingGradient
from traincheck.rules.numerics.tc703_vanishing_gradient import VanishingGradient
from traincheck.rules.numerics.tc704_gradient_all_zero import GradientAllZero
from traincheck.rules.numerics.tc705_dead_units import DeadUnits
from traincheck.rules.numerics.tc706_saturated_activation import SaturatedActivation
from traincheck.rules.numerics.tc707_exploding_activation import ExplodingActivation
from traincheck.rules.numerics.tc708_poor_initialization import PoorInitialization
from traincheck.rules.numerics.tc709_update_ratio import UpdateRatio
from traincheck.rules.numerics.tc710_loss_not_decreasing import LossNotDecreasing
from traincheck.rules.numerics.tc711_constant_loss import ConstantLoss
from traincheck.rules.numerics.tc712_overfitting import Overfitting
from traincheck.rules.numerics.tc713_class_imbalance import ClassImbalance
from traincheck.rules.numerics.tc714_dead_filters import DeadFilters
from traincheck.rules.numerics.tc715_parameter_gradient_zero import ParameterGradientZero
from traincheck.rules.numerics.tc716_evaluation_not_finite import EvaluationNotFinite
from traincheck.rules.numerics.tc717_evaluation_loss_constant import EvaluationLossConstant
from traincheck.rules.numerics.tc718_recomputation_differs import RecomputationDiffers
from traincheck.rules.origins.tc050_load_undone_by_update import LoadUndoneByUpdate
from traincheck.rules.origins.tc051_stale_gradients_applied import StaleGradientsApplied
from traincheck.rules.origins.tc052_optimizer_state_misplaced import OptimizerStateMisplaced
from traincheck.rules.origins.tc053_worst_state_kept import WorstStateKept
from traincheck.rules.origins.tc054_tied_copies_drift import TiedCopiesDrift
from traincheck.rules.origins.tc055_average_forgets import AverageForgets
from traincheck.rules.origins.tc056_new_rows_frozen import NewRowsFrozen
from traincheck.rules.origins.tc057_padding_row_not_zero import PaddingRowNotZero
from traincheck.rules.origins.tc059_missing_part_frozen import MissingPartFrozen
from traincheck.rules.parameters.tc101_parameter_not_in_optimizer import ParameterNotInOptimizer
from traincheck.rules.parameters.tc102_parameter_not_updated import ParameterNotUpdated
from traincheck.rules.parameters.tc103_parameter_updated_twice import ParameterUpdatedTwice
from traincheck.rules.parameters.tc104_optimizer_holds_replaced_parameters import (
    OptimizerHoldsReplacedParameters,
)
from traincheck.rules.parameters.tc105_gradient_cut_off import GradientCutOff
from traincheck.rules.parameters.tc106_unused_parameter import UnusedParameter
from traincheck.rules.parameters.tc107_frozen_parameter_updated import FrozenParameterUpdated
from traincheck.rules.parameters.tc108_adapter_frozen import AdapterFrozen
from traincheck.rules.parameters.tc109_frozen_norm_statistics import FrozenNormStatistics
from traincheck.rules.parameters.tc110_weights_untied import WeightsUntied
from traincheck.rules.parameters.tc111_weights_modified_in_eval import WeightsModifiedInEval
from traincheck.rules.parameters.tc112_loss_cut_off import LossCutOff
from traincheck.rules.parameters.tc113_layer_not_registered import LayerNotRegistered
from traincheck.rules.parameters.tc114_weights_modified_between_steps import (
    WeightsModifiedBetweenSteps,
)
from traincheck.rules.parameters.tc115_freeze_without_effect import FreezeWithoutEffect
from traincheck.rules.parameters.tc116_loaded_model_not_frozen import LoadedModelNotFrozen
from traincheck.rules.parameters.tc117_model_not_in_optimizer import ModelNotInOptimizer
from traincheck.rules.parameters.tc118_master_weights_not_copied_back import (
    MasterWeightsNotCopiedBack,
)
from traincheck.rules.precision.tc801_autocast_without_effect import AutocastWithoutEffect
from traincheck.rules.precision.tc802_position_buffer_in_half import PositionBufferInHalf
from traincheck.rules.precision.tc803_eps_underflows import EpsUnderflows
from traincheck.rules.precision.tc804_loss_not_scaled import LossNotScaled
from traincheck.rules.precision.tc805_parameters_in_half import ParametersInHalf
from traincheck.rules.precision.tc806_loss_in_half import LossInHalf
from traincheck.rules.precision.tc807_optimizer_state_in_half import OptimizerStateInHalf
from traincheck.rules.probes.tc001_samples_mixed import SamplesMixed
from traincheck.rules.probes.tc002_gradient_not_of_loss import GradientNotOfLoss
from traincheck.rules.probes.tc003_place_in_batch_matters import PlaceInBatchMatters
from traincheck.rules.probes.tc004_padding_takes_part import PaddingTakesPart
from traincheck.rules.probes.tc005_padding_vector_not_zero import PaddingVectorNotZero
from traincheck.rules.probes.tc006_input_overwritten import InputOverwritten
from traincheck.rules.probes.tc007_later_tokens_seen import LaterTokensSeen
from traincheck.rules.probes.tc008_statistics_learn_in_evaluation import StatisticsLearnInEvaluation
from traincheck.rules.provenance.tc030_constant_loss_term import ConstantLossTerm
from traincheck.rules.provenance.tc031_dropped_loss_sum import DroppedLossSum
from traincheck.rules.provenance.tc032_mean_weighted_by_itself import MeanWeightedByItself
from traincheck.rules.provenance.tc033_only_ignored_labels_trained import OnlyIgnoredLabelsTrained
from traincheck.rules.provenance.tc034_reference_with_dropout import ReferenceWithDropout
from traincheck.rules.ranks.tc085_accumulated_gradients_rescaled import AccumulatedGradientsRescaled
from traincheck.rules.ranks.tc086_replicated_parameter_differs import ReplicatedParameterDiffers
from traincheck.rules.ranks.tc087_gradients_reduced_over_one_rank import GradientsReducedOverOneRank
from traincheck.rules.ranks.tc401_replicas_differ import ReplicasDiffer
from traincheck.rules.ranks.tc402_ranks_step_unequally import RanksStepUnequally
from traincheck.rules.ranks.tc403_ddp_bypassed import DdpBypassed
from traincheck.rules.ranks.tc404_step_without_sync import StepWithoutSync
from traincheck.rules.ranks.tc405_parameter_outside_ddp import ParameterOutsideDdp
from traincheck.rules.ranks.tc406_ranks_use_different_learning_rates import (
    RanksUseDifferentLearningRates,
)
from traincheck.rules.ranks.tc410_collectives_out_of_order import CollectivesOutOfOrder
from traincheck.rules.ranks.tc411_collective_shapes_differ import CollectiveShapesDiffer
from traincheck.rules.ranks.tc412_clip_norms_differ import ClipNormsDiffer
from traincheck.rules.ranks.tc413_collective_result_differs import CollectiveResultDiffers
from traincheck.rules.ranks.tc414_ranks_initialized_differently import RanksInitializedDifferently
from traincheck.rules.ranks.tc415_ranks_left_waiting import RanksLeftWaiting
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
from traincheck.rules.shapes.tc323_batch_first_mismatch import BatchFirstMismatch
from traincheck.rules.shapes.tc326_batch_dims_mixed import BatchDimsMixed
from traincheck.rules.shapes.tc328_view_for_transpose import ViewForTranspose
from traincheck.rules.step_window.tc201_missing_zero_grad import MissingZeroGrad
from traincheck.rules.step_window.tc202_missing_step import MissingStep
from traincheck.rules.step_window.tc203_step_without_gradient import StepWithoutGradient
from traincheck.rules.step_window.tc204_gradients_lost_in_accumulation import (
    GradientsLostInAccumulation,
)
from traincheck.rules.step_window.tc205_clip_after_step import ClipAfterStep
from traincheck.rules.step_window.tc206_clip_scaled_gradients import ClipScaledGradients
from traincheck.rules.step_window.tc207_scaler_bypassed import ScalerBypassed
from traincheck.rules.step_window.tc208_scaler_skips_every_step import ScalerSkipsEveryStep
from traincheck.rules.step_window.tc212_same_loss_twice import SameLossTwice
from traincheck.rules.step_window.tc214_partial_accumulation_window import PartialAccumulationWindow
from traincheck.rules.step_window.tc215_loss_not_divided import LossNotDivided
from traincheck.rules.step_window.tc218_betas_swapped import BetasSwapped
from traincheck.rules.step_window.tc219_optimizer_stepped_twice import OptimizerSteppedTwice
from traincheck.rules.step_window.tc223_optimizer_recreated_each_epoch import (
    OptimizerRecreatedEachEpoch,
)
from traincheck.rules.step_window.tc224_clip_grad_without_gradients import ClipGradWithoutGradients
from traincheck.rules.torch_warnings.tc075_library_warning import LibraryWarning
from traincheck.rules.torch_warnings.tc076_library_advice import LibraryAdvice
from traincheck.rules.torch_warnings.tc950_torch_warning import TorchWarning
from traincheck.rules.torch_warnings.tc951_torch_advice import TorchAdvice
from traincheck.schema.protocols import Rule

RULES: tuple[Rule, ...] = (
    SamplesMixed(),
    GradientNotOfLoss(),
    PlaceInBatchMatters(),
    PaddingTakesPart(),
    PaddingVectorNotZero(),
    InputOverwritten(),
    LaterTokensSeen(),
    StatisticsLearnInEvaluation(),
    ConstantLossTerm(),
    DroppedLossSum(),
    MeanWeightedByItself(),
    OnlyIgnoredLabelsTrained(),
    ReferenceWithDropout(),
    LoadUndoneByUpdate(),
    StaleGradientsApplied(),
    OptimizerStateMisplaced(),
    WorstStateKept(),
    TiedCopiesDrift(),
    AverageForgets(),
    NewRowsFrozen(),
    PaddingRowNotZero(),
    MissingPartFrozen(),
    LoadedSettingReplacesAsked(),
    SettingWrittenElsewhere(),
    ScheduleHoldsOldGroups(),
    RateSetForOneGroup(),
    RateOverwrittenByScheduler(),
    MetricForTwoPhases(),
    MetricNeverReset(),
    DrawnOrderLost(),
    DatasetWrittenWhenRead(),
    RateDecayedToNothing(),
    LibraryWarning(),
    LibraryAdvice(),
    AccumulatedGradientsRescaled(),
    ReplicatedParameterDiffers(),
    GradientsReducedOverOneRank(),
    ParameterNotInOptimizer(),
    ParameterNotUpdated(),
    ParameterUpdatedTwice(),
    OptimizerHoldsReplacedParameters(),
    GradientCutOff(),
    UnusedParameter(),
    FrozenParameterUpdated(),
    AdapterFrozen(),
    FrozenNormStatistics(),
    WeightsUntied(),
    WeightsModifiedInEval(),
    LossCutOff(),
    LayerNotRegistered(),
    WeightsModifiedBetweenSteps(),
    FreezeWithoutEffect(),
    LoadedModelNotFrozen(),
    ModelNotInOptimizer(),
    MasterWeightsNotCopiedBack(),
    MissingZeroGrad(),
    MissingStep(),
    StepWithoutGradient(),
    GradientsLostInAccumulation(),
    ClipAfterStep(),
    ClipScaledGradients(),
    ScalerBypassed(),
    ScalerSkipsEveryStep(),
    SchedulerBeforeOptimizer(),
    LearningRateExhausted(),
    SchedulerNeverStepped(),
    SameLossTwice(),
    SchedulerSteppedByBatchAndEpoch(),
    PartialAccumulationWindow(),
    LossNotDivided(),
    SchedulerOfAnotherOptimizer(),
    CosinePastTMax(),
    BetasSwapped(),
    OptimizerSteppedTwice(),
    PlateauModeMismatch(),
    SchedulerSteppedPerEpoch(),
    LambdaLrReturnsRate(),
    OptimizerRecreatedEachEpoch(),
    ClipGradWithoutGradients(),
    TrainedInEvalMode(),
    EvaluatedInTrainingMode(),
    DropoutInEvaluation(),
    PartLeftInEvalMode(),
    SpectralNormBeforeTraining(),
    FrozenModelInTrainingMode(),
    InitialNormStatistics(),
    StaleNormStatistics(),
    CrossEntropyOfProbabilities(),
    LogitLossOfProbabilities(),
    NllLossWithoutLog(),
    LossBroadcasts(),
    NoValidLabel(),
    SingleClass(),
    MaskNotUsed(),
    MaskInverted(),
    PackedRowsNotSeparated(),
    EndTokenNotLearned(),
    MicroBatchesWeightedEqually(),
    ReductionsMixed(),
    LabelsShiftedTwice(),
    BatchFirstMismatch(),
    MissingCausalMask(),
    CtcBlankInTargets(),
    BatchDimsMixed(),
    TrainEvalPreprocessingMismatch(),
    ViewForTranspose(),
    InitializedRepeatedly(),
    TargetOutOfRange(),
    BroadcastInOwnLoss(),
    PaddingAmongLabels(),
    SoftmaxOverOneElement(),
    ZeroLabelInMarginLoss(),
    MultiLabelCrossEntropy(),
    TargetOutsideActivationRange(),
    SoftmaxOverQueries(),
    LabelsNotShifted(),
    ReplicasDiffer(),
    RanksStepUnequally(),
    DdpBypassed(),
    StepWithoutSync(),
    ParameterOutsideDdp(),
    RanksUseDifferentLearningRates(),
    CollectivesOutOfOrder(),
    CollectiveShapesDiffer(),
    ClipNormsDiffer(),
    CollectiveResultDiffers(),
    RanksInitializedDifferently(),
    RanksLeftWaiting(),
    StreamRepeatedByWorkers(),
    SameBatchOnEveryRank(),
    ShuffledOrderRepeats(),
    WorkersRepeatRandomDraws(),
    EpochsRepeatRandomDraws(),
    LabelsInOrder(),
    BatchFoldedIntoOneRow(),
    EvaluatedOnTrainingData(),
    ReseededDuringTraining(),
    RanksDriftInRandomNumbers(),
    RanksShareSamples(),
    IdenticalSamples(),
    SampleRedrawn(),
    RanksRepeatRandomDraws(),
    SamplerWeightsTooFew(),
    BatchNotUsed(),
    ReseededPerSample(),
    OnlyLastBatchUsed(),
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
    NonFiniteValue(),
    ExplodingGradient(),
    VanishingGradient(),
    GradientAllZero(),
    DeadUnits(),
    SaturatedActivation(),
    ExplodingActivation(),
    PoorInitialization(),
    UpdateRatio(),
    LossNotDecreasing(),
    ConstantLoss(),
    Overfitting(),
    ClassImbalance(),
    DeadFilters(),
    ParameterGradientZero(),
    EvaluationNotFinite(),
    EvaluationLossConstant(),
    RecomputationDiffers(),
    AutocastWithoutEffect(),
    PositionBufferInHalf(),
    EpsUnderflows(),
    LossNotScaled(),
    ParametersInHalf(),
    LossInHalf(),
    OptimizerStateInHalf(),
    UnalignedSize(),
    ChannelsFirstOnGpu(),
    FullPrecisionOnGpu(),
    ModelOffTheGpu(),
    BiasBeforeNorm(),
    AdamWithDecay(),
    DecayOnBiasOrNorm(),
    DecayOnEmbedding(),
    EvenKernel(),
    PaddingIndexMissing(),
    PaddingIndexDiffers(),
    MaskAttendsToPadding(),
    MostlyPadding(),
    TinyBatchNorm(),
    BatchNormReused(),
    UnknownTokens(),
    UntiedEmbedding(),
    UnscaledImage(),
    FlatBatch(),
    ChannelsLastBatch(),
    NegativeIndex(),
    LayerReused(),
    NormMomentumReversed(),
    TorchWarning(),
    TorchAdvice(),
)
