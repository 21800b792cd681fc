"""Rules about data order and random numbers, by code."""

from __future__ import annotations

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
from traincheck.schema.protocols import Rule

RULES: tuple[Rule, ...] = (
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
)
