"""The rules that come with traincheck, by code."""

from __future__ import annotations

from traincheck.rules.attention.masks import MaskInverted, MaskNotUsed
from traincheck.rules.attention.missing_masks import MissingCausalMask, PackedRowsNotSeparated
from traincheck.rules.attention.tc337_softmax_over_queries import SoftmaxOverQueries
from traincheck.rules.batch_content.images import ChannelsLastBatch, FlatBatch, UnscaledImage
from traincheck.rules.batch_content.tokens import (
    MaskAttendsToPadding,
    MostlyPadding,
    NegativeIndex,
    UnknownTokens,
)
from traincheck.rules.checkpoints.averaged import (
    AveragedModelNeverUpdated,
    AveragedModelNotRestored,
)
from traincheck.rules.checkpoints.keys import LoadedWeightLostByTying, StateDictKeysMismatch
from traincheck.rules.checkpoints.not_restored import (
    OptimizerNotRestored,
    ScalerNotRestored,
    SchedulerNotRestored,
)
from traincheck.rules.checkpoints.reset import (
    InitializedAfterLoad,
    WeightsResetDuringTraining,
)
from traincheck.rules.checkpoints.resumed import (
    DataOrderDiffersAfterResume,
    StepCountResetOnResume,
)
from traincheck.rules.checkpoints.saved import OptimizerSavedInPart, StateNotCopied
from traincheck.rules.checkpoints.tc610_random_state_not_restored import RandomStateNotRestored
from traincheck.rules.configuration.batch_norms import NormMomentumReversed, TinyBatchNorm
from traincheck.rules.configuration.decay import AdamWithDecay, DecayOnBiasOrNorm, DecayOnEmbedding
from traincheck.rules.configuration.layers import (
    BiasBeforeNorm,
    EvenKernel,
    PaddingIndexDiffers,
    PaddingIndexMissing,
    UntiedEmbedding,
)
from traincheck.rules.configuration.reuse import BatchNormReused, LayerReused
from traincheck.rules.data.batches import BatchFoldedIntoOneRow, OnlyLastBatchUsed
from traincheck.rules.data.rank_draws import RanksDriftInRandomNumbers, RanksRepeatRandomDraws
from traincheck.rules.data.reseeded import ReseededDuringTraining, ReseededPerSample
from traincheck.rules.data.samplers import SamplerWeightsTooFew, ShuffledOrderRepeats
from traincheck.rules.data.samples import IdenticalSamples, SampleRedrawn
from traincheck.rules.data.tc501_stream_repeated_by_workers import StreamRepeatedByWorkers
from traincheck.rules.data.tc502_same_batch_on_every_rank import SameBatchOnEveryRank
from traincheck.rules.data.tc506_labels_in_order import LabelsInOrder
from traincheck.rules.data.tc508_evaluated_on_training_data import EvaluatedOnTrainingData
from traincheck.rules.data.tc512_ranks_share_samples import RanksShareSamples
from traincheck.rules.data.tc517_batch_not_used import BatchNotUsed
from traincheck.rules.data.tc520_evaluation_incomplete import EvaluationIncomplete
from traincheck.rules.data.tc521_evaluated_rows_trained_on import EvaluatedRowsTrainedOn
from traincheck.rules.data.worker_draws import EpochsRepeatRandomDraws, WorkersRepeatRandomDraws
from traincheck.rules.efficiency.gpu import (
    ChannelsFirstOnGpu,
    FullPrecisionOnGpu,
    ModelOffTheGpu,
    UnalignedSize,
)
from traincheck.rules.ledger.data import DatasetWrittenWhenRead, DrawnOrderLost
from traincheck.rules.ledger.metrics import MetricForTwoPhases, MetricNeverReset
from traincheck.rules.ledger.rates import (
    RateDecayedToNothing,
    RateOverwrittenByScheduler,
    RateSetForOneGroup,
)
from traincheck.rules.ledger.settings import LoadedSettingReplacesAsked, SettingWrittenElsewhere
from traincheck.rules.ledger.tc067_schedule_holds_old_groups import ScheduleHoldsOldGroups
from traincheck.rules.losses.activations import (
    SoftmaxOverOneElement,
    TargetOutsideActivationRange,
)
from traincheck.rules.losses.broadcasts import BroadcastInOwnLoss, LossBroadcasts
from traincheck.rules.losses.encodings import MultiLabelCrossEntropy, ZeroLabelInMarginLoss
from traincheck.rules.losses.labels import CtcBlankInTargets, NoValidLabel, SingleClass
from traincheck.rules.losses.means import MicroBatchesWeightedEqually, ReductionsMixed
from traincheck.rules.losses.probabilities import CrossEntropyOfProbabilities, NllLossWithoutLog
from traincheck.rules.losses.shifts import LabelsNotShifted, LabelsShiftedTwice
from traincheck.rules.losses.tc311_logit_loss_of_probabilities import LogitLossOfProbabilities
from traincheck.rules.losses.tc330_target_out_of_range import TargetOutOfRange
from traincheck.rules.losses.token_labels import EndTokenNotLearned, PaddingAmongLabels
from traincheck.rules.modes.before_training import InitializedRepeatedly, SpectralNormBeforeTraining
from traincheck.rules.modes.norm_statistics import InitialNormStatistics, StaleNormStatistics
from traincheck.rules.modes.parts import (
    DropoutInEvaluation,
    FrozenModelInTrainingMode,
    PartLeftInEvalMode,
)
from traincheck.rules.modes.tc327_train_eval_preprocessing_mismatch import (
    TrainEvalPreprocessingMismatch,
)
from traincheck.rules.modes.whole_models import EvaluatedInTrainingMode, TrainedInEvalMode
from traincheck.rules.numerics.evaluations import EvaluationNotFinite, Overfitting
from traincheck.rules.numerics.losses import ConstantLoss, LossNotDecreasing
from traincheck.rules.numerics.sizes import ExplodingActivation, PoorInitialization
from traincheck.rules.numerics.tc701_non_finite_value import NonFiniteValue
from traincheck.rules.numerics.tc702_exploding_gradient import ExplodingGradient
from traincheck.rules.numerics.tc703_vanishing_gradient import VanishingGradient
from traincheck.rules.numerics.tc709_update_ratio import UpdateRatio
from traincheck.rules.numerics.tc713_class_imbalance import ClassImbalance
from traincheck.rules.numerics.tc717_evaluation_loss_constant import EvaluationLossConstant
from traincheck.rules.numerics.tc718_recomputation_differs import RecomputationDiffers
from traincheck.rules.numerics.tc719_no_signal import NoSignal
from traincheck.rules.numerics.units import DeadFilters, DeadUnits, SaturatedActivation
from traincheck.rules.numerics.zero_gradients import GradientAllZero, ParameterGradientZero
from traincheck.rules.origins.copies import AverageForgets, TiedCopiesDrift
from traincheck.rules.origins.loads import LoadUndoneByUpdate, WorstStateKept
from traincheck.rules.origins.tc051_stale_gradients_applied import StaleGradientsApplied
from traincheck.rules.origins.tc052_optimizer_state_misplaced import OptimizerStateMisplaced
from traincheck.rules.origins.untrained import MissingPartFrozen, NewRowsFrozen, PaddingRowNotZero
from traincheck.rules.parameters.copies import (
    MasterWeightsNotCopiedBack,
    WeightsUntied,
)
from traincheck.rules.parameters.freezing import (
    FreezeWithoutEffect,
    LoadedModelNotFrozen,
    ModelNotInOptimizer,
)
from traincheck.rules.parameters.frozen import (
    AdapterFrozen,
    FrozenNormStatistics,
    FrozenParameterUpdated,
)
from traincheck.rules.parameters.holders import (
    OptimizerHoldsReplacedParameters,
    ParameterUpdatedTwice,
)
from traincheck.rules.parameters.modified import (
    WeightsModifiedBetweenSteps,
    WeightsModifiedInEval,
)
from traincheck.rules.parameters.tc101_parameter_not_in_optimizer import ParameterNotInOptimizer
from traincheck.rules.parameters.tc102_parameter_not_updated import ParameterNotUpdated
from traincheck.rules.parameters.tc112_loss_cut_off import LossCutOff
from traincheck.rules.parameters.tc113_layer_not_registered import LayerNotRegistered
from traincheck.rules.parameters.unreached import GradientCutOff, UnusedParameter
from traincheck.rules.precision.autocast import AutocastWithoutEffect, EpsUnderflows, LossNotScaled
from traincheck.rules.precision.half import (
    LossInHalf,
    OptimizerStateInHalf,
    ParametersInHalf,
    PositionBufferInHalf,
)
from traincheck.rules.probes.dependences import LaterTokensSeen, PlaceInBatchMatters, SamplesMixed
from traincheck.rules.probes.padding import PaddingTakesPart, PaddingVectorNotZero
from traincheck.rules.probes.tc002_gradient_not_of_loss import GradientNotOfLoss
from traincheck.rules.probes.writes import InputOverwritten, StatisticsLearnInEvaluation
from traincheck.rules.provenance.means import MeanWeightedByItself, OnlyIgnoredLabelsTrained
from traincheck.rules.provenance.tc034_reference_with_dropout import ReferenceWithDropout
from traincheck.rules.provenance.terms import ConstantLossTerm, DroppedLossSum
from traincheck.rules.ranks.agreement import (
    DdpBypassed,
    ParameterOutsideDdp,
    RanksUseDifferentLearningRates,
    StepWithoutSync,
)
from traincheck.rules.ranks.collectives import CollectiveShapesDiffer, CollectivesOutOfOrder
from traincheck.rules.ranks.replicated import (
    GradientsReducedOverOneRank,
    ReplicatedParameterDiffers,
)
from traincheck.rules.ranks.tc085_accumulated_gradients_rescaled import AccumulatedGradientsRescaled
from traincheck.rules.ranks.tc401_replicas_differ import ReplicasDiffer
from traincheck.rules.ranks.tc402_ranks_step_unequally import RanksStepUnequally
from traincheck.rules.ranks.tc415_ranks_left_waiting import RanksLeftWaiting
from traincheck.rules.ranks.values import (
    ClipNormsDiffer,
    CollectiveResultDiffers,
    RanksInitializedDifferently,
)
from traincheck.rules.schedules.steps import SchedulerBeforeOptimizer, SchedulerNeverStepped
from traincheck.rules.schedules.tc210_learning_rate_exhausted import LearningRateExhausted
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
from traincheck.rules.shapes.batch_dims import BatchDimsMixed, BatchFirstMismatch
from traincheck.rules.shapes.tc328_view_for_transpose import ViewForTranspose
from traincheck.rules.shapes.tc380_statistic_of_one_element import StatisticOfOneElement
from traincheck.rules.step_window.accumulation import LossNotDivided, PartialAccumulationWindow
from traincheck.rules.step_window.clipping import ClipAfterStep, ClipScaledGradients
from traincheck.rules.step_window.optimizers import (
    BetasSwapped,
    OptimizerRecreatedEachEpoch,
)
from traincheck.rules.step_window.scaler import ScalerBypassed, ScalerSkipsEveryStep
from traincheck.rules.step_window.tc201_missing_zero_grad import MissingZeroGrad
from traincheck.rules.step_window.tc202_missing_step import MissingStep
from traincheck.rules.step_window.tc203_step_without_gradient import StepWithoutGradient
from traincheck.rules.step_window.tc204_gradients_lost_in_accumulation import (
    GradientsLostInAccumulation,
)
from traincheck.rules.step_window.tc224_clip_grad_without_gradients import ClipGradWithoutGradients
from traincheck.rules.step_window.twice import OptimizerSteppedTwice, SameLossTwice
from traincheck.rules.torch_warnings.of_libraries import LibraryAdvice, LibraryWarning
from traincheck.rules.torch_warnings.of_torch import TorchAdvice, TorchWarning
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
    StatisticOfOneElement(),
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
    EvaluationIncomplete(),
    EvaluatedRowsTrainedOn(),
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
    NoSignal(),
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
