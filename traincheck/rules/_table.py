"""All rules that come with traincheck, by code, and those that installed packages add."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from traincheck.errors import UsageError
from traincheck.rules.tc101_parameter_not_in_optimizer import ParameterNotInOptimizer
from traincheck.rules.tc102_parameter_not_updated import ParameterNotUpdated
from traincheck.rules.tc103_parameter_updated_twice import ParameterUpdatedTwice
from traincheck.rules.tc104_stale_parameters import StaleParameters
from traincheck.rules.tc105_gradient_cut_off import GradientCutOff
from traincheck.rules.tc106_unused_parameter import UnusedParameter
from traincheck.rules.tc107_frozen_parameter_updated import FrozenParameterUpdated
from traincheck.rules.tc108_adapter_frozen import AdapterFrozen
from traincheck.rules.tc109_frozen_norm_statistics import FrozenNormStatistics
from traincheck.rules.tc110_weights_untied import WeightsUntied
from traincheck.rules.tc111_written_in_evaluation import WrittenInEvaluation
from traincheck.rules.tc112_loss_cut_off import LossCutOff
from traincheck.rules.tc113_layer_not_registered import LayerNotRegistered
from traincheck.rules.tc114_written_between_steps import WrittenBetweenSteps
from traincheck.rules.tc115_freeze_without_effect import FreezeWithoutEffect
from traincheck.rules.tc116_model_in_no_optimizer import ModelInNoOptimizer
from traincheck.rules.tc117_left_out_of_optimizers import LeftOutOfOptimizers
from traincheck.rules.tc118_masters_not_copied_back import MastersNotCopiedBack
from traincheck.rules.tc201_missing_zero_grad import MissingZeroGrad
from traincheck.rules.tc202_missing_step import MissingStep
from traincheck.rules.tc203_step_without_gradient import StepWithoutGradient
from traincheck.rules.tc204_gradients_lost_in_accumulation import GradientsLost
from traincheck.rules.tc205_clip_after_step import ClipAfterStep
from traincheck.rules.tc206_clip_scaled_gradients import ClipScaledGradients
from traincheck.rules.tc207_scaler_bypassed import ScalerBypassed
from traincheck.rules.tc208_scaler_skips_every_step import ScalerSkipsEveryStep
from traincheck.rules.tc209_scheduler_before_optimizer import SchedulerBeforeOptimizer
from traincheck.rules.tc210_learning_rate_exhausted import LearningRateExhausted
from traincheck.rules.tc211_scheduler_never_stepped import SchedulerNeverStepped
from traincheck.rules.tc212_same_loss_twice import SameLossTwice
from traincheck.rules.tc213_scheduler_stepped_by_batch_and_epoch import (
    SchedulerSteppedByBatchAndEpoch,
)
from traincheck.rules.tc214_partial_accumulation_window import PartialAccumulationWindow
from traincheck.rules.tc215_loss_not_divided import LossNotDivided
from traincheck.rules.tc216_scheduler_of_another_optimizer import SchedulerOfAnotherOptimizer
from traincheck.rules.tc217_cosine_turns_back import CosineTurnsBack
from traincheck.rules.tc218_betas_swapped import BetasSwapped
from traincheck.rules.tc219_stepped_again import SteppedAgain
from traincheck.rules.tc220_plateau_of_the_wrong_kind import PlateauOfTheWrongKind
from traincheck.rules.tc221_schedule_in_another_unit import ScheduleInAnotherUnit
from traincheck.rules.tc222_rate_multiplied_twice import RateMultipliedTwice
from traincheck.rules.tc223_optimizer_made_anew import OptimizerMadeAnew
from traincheck.rules.tc224_clips_no_gradient import ClipsNoGradient
from traincheck.rules.tc301_trained_in_eval_mode import TrainedInEvalMode
from traincheck.rules.tc302_evaluated_in_training_mode import EvaluatedInTrainingMode
from traincheck.rules.tc303_dropout_in_evaluation import DropoutInEvaluation
from traincheck.rules.tc304_part_left_in_eval_mode import PartLeftInEvalMode
from traincheck.rules.tc305_spectral_norm_before_training import SpectralNormBeforeTraining
from traincheck.rules.tc306_frozen_model_in_training_mode import FrozenModelInTrainingMode
from traincheck.rules.tc307_initial_norm_statistics import InitialNormStatistics
from traincheck.rules.tc308_stale_norm_statistics import StaleNormStatistics
from traincheck.rules.tc310_cross_entropy_of_probabilities import CrossEntropyOfProbabilities
from traincheck.rules.tc311_logit_loss_of_probabilities import LogitLossOfProbabilities
from traincheck.rules.tc312_nll_loss_without_log import NllLossWithoutLog
from traincheck.rules.tc313_loss_broadcasts import LossBroadcasts
from traincheck.rules.tc314_no_valid_label import NoValidLabel
from traincheck.rules.tc315_single_class import SingleClass
from traincheck.rules.tc316_mask_not_used import MaskNotUsed
from traincheck.rules.tc317_mask_inverted import MaskInverted
from traincheck.rules.tc318_packed_rows_not_separated import PackedRowsNotSeparated
from traincheck.rules.tc319_end_token_not_learned import EndTokenNotLearned
from traincheck.rules.tc320_micro_batches_weighted_alike import MicroBatchesWeightedAlike
from traincheck.rules.tc321_reductions_mixed import ReductionsMixed
from traincheck.rules.tc322_labels_shifted_twice import LabelsShiftedTwice
from traincheck.rules.tc323_batch_read_as_sequence import BatchReadAsSequence
from traincheck.rules.tc324_future_attended import FutureAttended
from traincheck.rules.tc325_blank_among_labels import BlankAmongLabels
from traincheck.rules.tc326_batch_dims_mixed import BatchDimsMixed
from traincheck.rules.tc327_evaluated_on_another_scale import EvaluatedOnAnotherScale
from traincheck.rules.tc328_view_for_transpose import ViewForTranspose
from traincheck.rules.tc329_initialized_again import InitializedAgain
from traincheck.rules.tc330_target_out_of_range import TargetOutOfRange
from traincheck.rules.tc331_broadcast_in_own_loss import BroadcastInOwnLoss
from traincheck.rules.tc332_padding_among_labels import PaddingAmongLabels
from traincheck.rules.tc333_softmax_over_one import SoftmaxOverOne
from traincheck.rules.tc334_labels_of_zero import LabelsOfZero
from traincheck.rules.tc335_several_classes import SeveralClasses
from traincheck.rules.tc336_output_out_of_reach import OutputOutOfReach
from traincheck.rules.tc337_softmax_over_queries import SoftmaxOverQueries
from traincheck.rules.tc338_labels_not_shifted import LabelsNotShifted
from traincheck.rules.tc401_replicas_differ import ReplicasDiffer
from traincheck.rules.tc402_ranks_step_unequally import RanksStepUnequally
from traincheck.rules.tc403_ddp_bypassed import DdpBypassed
from traincheck.rules.tc404_step_without_sync import StepWithoutSync
from traincheck.rules.tc405_parameter_outside_ddp import ParameterOutsideDdp
from traincheck.rules.tc406_ranks_use_other_rates import RanksUseOtherRates
from traincheck.rules.tc410_collectives_out_of_order import CollectivesOutOfOrder
from traincheck.rules.tc411_collective_shapes_differ import CollectiveShapesDiffer
from traincheck.rules.tc412_clip_norms_differ import ClipNormsDiffer
from traincheck.rules.tc413_received_differs import ReceivedDiffers
from traincheck.rules.tc414_ranks_start_apart import RanksStartApart
from traincheck.rules.tc415_ranks_left_waiting import RanksLeftWaiting
from traincheck.rules.tc501_stream_repeated_by_workers import StreamRepeatedByWorkers
from traincheck.rules.tc502_same_batch_on_every_rank import SameBatchOnEveryRank
from traincheck.rules.tc503_shuffled_order_repeats import ShuffledOrderRepeats
from traincheck.rules.tc504_workers_draw_the_same import WorkersDrawTheSame
from traincheck.rules.tc505_epochs_draw_the_same import EpochsDrawTheSame
from traincheck.rules.tc506_labels_in_order import LabelsInOrder
from traincheck.rules.tc507_batch_folded_into_one_row import BatchFoldedIntoOneRow
from traincheck.rules.tc508_evaluated_on_training_data import EvaluatedOnTrainingData
from traincheck.rules.tc510_seeded_again import SeededAgain
from traincheck.rules.tc511_ranks_drift_in_random_numbers import RanksDriftInRandomNumbers
from traincheck.rules.tc512_ranks_share_samples import RanksShareSamples
from traincheck.rules.tc513_samples_alike import SamplesAlike
from traincheck.rules.tc514_drawn_again import DrawnAgain
from traincheck.rules.tc515_ranks_draw_the_same import RanksDrawTheSame
from traincheck.rules.tc516_too_few_weights import TooFewWeights
from traincheck.rules.tc517_batch_not_used import BatchNotUsed
from traincheck.rules.tc518_seeded_for_each_sample import SeededForEachSample
from traincheck.rules.tc519_only_last_batch_used import OnlyLastBatchUsed
from traincheck.rules.tc601_nothing_loaded import NothingLoaded
from traincheck.rules.tc602_optimizer_not_restored import OptimizerNotRestored
from traincheck.rules.tc603_scheduler_not_restored import SchedulerNotRestored
from traincheck.rules.tc604_state_not_copied import StateNotCopied
from traincheck.rules.tc605_optimizer_saved_in_part import OptimizerSavedInPart
from traincheck.rules.tc606_loaded_weight_given_up import LoadedWeightGivenUp
from traincheck.rules.tc607_epoch_resumed_in_another_order import EpochResumedInAnotherOrder
from traincheck.rules.tc608_training_undone import TrainingUndone
from traincheck.rules.tc609_scaler_not_restored import ScalerNotRestored
from traincheck.rules.tc610_random_state_not_restored import RandomStateNotRestored
from traincheck.rules.tc611_average_forgotten import AverageForgotten
from traincheck.rules.tc612_count_begins_anew import CountBeginsAnew
from traincheck.rules.tc613_initialized_after_load import InitializedAfterLoad
from traincheck.rules.tc614_average_never_updated import AverageNeverUpdated
from traincheck.rules.tc701_non_finite_value import NonFiniteValue
from traincheck.rules.tc702_exploding_gradient import ExplodingGradient
from traincheck.rules.tc703_vanishing_gradient import VanishingGradient
from traincheck.rules.tc704_gradient_all_zero import GradientAllZero
from traincheck.rules.tc705_dead_units import DeadUnits
from traincheck.rules.tc706_saturated_activation import SaturatedActivation
from traincheck.rules.tc707_exploding_activation import ExplodingActivation
from traincheck.rules.tc708_poor_initialization import PoorInitialization
from traincheck.rules.tc709_update_ratio import UpdateRatio
from traincheck.rules.tc710_loss_not_decreasing import LossNotDecreasing
from traincheck.rules.tc711_constant_loss import ConstantLoss
from traincheck.rules.tc712_overfitting import Overfitting
from traincheck.rules.tc713_class_imbalance import ClassImbalance
from traincheck.rules.tc714_dead_filters import DeadFilters
from traincheck.rules.tc715_parameter_gradient_zero import ParameterGradientZero
from traincheck.rules.tc716_evaluation_not_finite import EvaluationNotFinite
from traincheck.rules.tc717_evaluation_loss_fixed import EvaluationLossFixed
from traincheck.rules.tc801_autocast_without_effect import AutocastWithoutEffect
from traincheck.rules.tc802_position_buffer_in_half import PositionBufferInHalf
from traincheck.rules.tc803_eps_vanishes import EpsVanishes
from traincheck.rules.tc804_loss_not_scaled import LossNotScaled
from traincheck.rules.tc805_parameters_in_half import ParametersInHalf
from traincheck.rules.tc806_loss_in_half import LossInHalf
from traincheck.rules.tc807_optimizer_state_in_half import OptimizerStateInHalf
from traincheck.rules.tc901_unaligned_size import UnalignedSize
from traincheck.rules.tc902_channels_first_on_gpu import ChannelsFirst
from traincheck.rules.tc903_full_precision_on_gpu import FullPrecision
from traincheck.rules.tc904_model_off_the_gpu import OffTheGpu
from traincheck.rules.tc905_bias_before_norm import BiasBeforeNorm
from traincheck.rules.tc906_adam_with_decay import AdamWithDecay
from traincheck.rules.tc907_decay_on_bias_or_norm import DecayOnBiasOrNorm
from traincheck.rules.tc908_decay_on_embedding import DecayOnEmbedding
from traincheck.rules.tc909_even_kernel import EvenKernel
from traincheck.rules.tc910_padding_index_missing import PaddingIndexMissing
from traincheck.rules.tc911_padding_index_differs import PaddingIndexDiffers
from traincheck.rules.tc912_mask_attends_to_padding import MaskAttendsToPadding
from traincheck.rules.tc913_mostly_padding import MostlyPadding
from traincheck.rules.tc914_tiny_batch_norm import TinyBatchNorm
from traincheck.rules.tc915_batch_norm_reused import BatchNormReused
from traincheck.rules.tc916_unknown_tokens import UnknownTokens
from traincheck.rules.tc917_untied_embedding import UntiedEmbedding
from traincheck.rules.tc918_unscaled_image import UnscaledImage
from traincheck.rules.tc919_flat_batch import FlatBatch
from traincheck.rules.tc920_channels_last_batch import ChannelsLastBatch
from traincheck.rules.tc921_negative_index import NegativeIndex
from traincheck.rules.tc922_layer_reused import LayerReused
from traincheck.rules.tc923_norm_momentum_reversed import NormMomentumReversed
from traincheck.rules.tc950_torch_warning import TorchWarning
from traincheck.rules.tc951_torch_advice import TorchAdvice
from traincheck.schema.protocols import Rule

ENTRY_POINTS = "traincheck.rules"

RULES: tuple[Rule, ...] = (
    ParameterNotInOptimizer(),
    ParameterNotUpdated(),
    ParameterUpdatedTwice(),
    StaleParameters(),
    GradientCutOff(),
    UnusedParameter(),
    FrozenParameterUpdated(),
    AdapterFrozen(),
    FrozenNormStatistics(),
    WeightsUntied(),
    WrittenInEvaluation(),
    LossCutOff(),
    LayerNotRegistered(),
    WrittenBetweenSteps(),
    FreezeWithoutEffect(),
    ModelInNoOptimizer(),
    LeftOutOfOptimizers(),
    MastersNotCopiedBack(),
    MissingZeroGrad(),
    MissingStep(),
    StepWithoutGradient(),
    GradientsLost(),
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
    CosineTurnsBack(),
    BetasSwapped(),
    SteppedAgain(),
    PlateauOfTheWrongKind(),
    ScheduleInAnotherUnit(),
    RateMultipliedTwice(),
    OptimizerMadeAnew(),
    ClipsNoGradient(),
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
    MicroBatchesWeightedAlike(),
    ReductionsMixed(),
    LabelsShiftedTwice(),
    BatchReadAsSequence(),
    FutureAttended(),
    BlankAmongLabels(),
    BatchDimsMixed(),
    EvaluatedOnAnotherScale(),
    ViewForTranspose(),
    InitializedAgain(),
    TargetOutOfRange(),
    BroadcastInOwnLoss(),
    PaddingAmongLabels(),
    SoftmaxOverOne(),
    LabelsOfZero(),
    SeveralClasses(),
    OutputOutOfReach(),
    SoftmaxOverQueries(),
    LabelsNotShifted(),
    ReplicasDiffer(),
    RanksStepUnequally(),
    DdpBypassed(),
    StepWithoutSync(),
    ParameterOutsideDdp(),
    RanksUseOtherRates(),
    CollectivesOutOfOrder(),
    CollectiveShapesDiffer(),
    ClipNormsDiffer(),
    ReceivedDiffers(),
    RanksStartApart(),
    RanksLeftWaiting(),
    StreamRepeatedByWorkers(),
    SameBatchOnEveryRank(),
    ShuffledOrderRepeats(),
    WorkersDrawTheSame(),
    EpochsDrawTheSame(),
    LabelsInOrder(),
    BatchFoldedIntoOneRow(),
    EvaluatedOnTrainingData(),
    SeededAgain(),
    RanksDriftInRandomNumbers(),
    RanksShareSamples(),
    SamplesAlike(),
    DrawnAgain(),
    RanksDrawTheSame(),
    TooFewWeights(),
    BatchNotUsed(),
    SeededForEachSample(),
    OnlyLastBatchUsed(),
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
    EvaluationLossFixed(),
    AutocastWithoutEffect(),
    PositionBufferInHalf(),
    EpsVanishes(),
    LossNotScaled(),
    ParametersInHalf(),
    LossInHalf(),
    OptimizerStateInHalf(),
    UnalignedSize(),
    ChannelsFirst(),
    FullPrecision(),
    OffTheGpu(),
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


def all_rules() -> tuple[Rule, ...]:
    """The table, then the rules that other packages offer as entry points ``traincheck.rules``.

    Raises:
        UsageError: a package offers a rule whose code is taken, or something that is no rule.
    """
    rules = {rule.info.code: rule for rule in RULES}
    for entry in sorted(entry_points(group=ENTRY_POINTS), key=lambda e: (e.name, e.value)):
        rule = _load(entry)
        if rule.info.code in rules:
            raise UsageError(
                f"{entry.value} offers rule {rule.info.code}, which exists already",
                fix="uninstall the package or give its rule another code",
            )
        rules[rule.info.code] = rule
    return tuple(rules.values())


def _load(entry: EntryPoint) -> Rule:
    try:
        rule: Rule = entry.load()()
        is_rule = bool(rule.info.code) and callable(rule.monitor) and rule.needs is not None
    except Exception as error:  # whatever a foreign module may raise
        raise UsageError(
            f"{entry.value} cannot be used as a rule: {type(error).__name__}: {error}",
            fix="repair or uninstall the package that offers it",
        ) from error
    if not is_rule:
        raise UsageError(f"{entry.value} is no rule", fix="uninstall the package that offers it")
    return rule
