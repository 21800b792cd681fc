"""Rules about data order and random numbers, by code."""

from __future__ import annotations

from traincheck.rules.data.tc501_stream_repeated_by_workers import StreamRepeatedByWorkers
from traincheck.rules.data.tc502_same_batch_on_every_rank import SameBatchOnEveryRank
from traincheck.rules.data.tc503_shuffled_order_repeats import ShuffledOrderRepeats
from traincheck.rules.data.tc504_workers_draw_the_same import WorkersDrawTheSame
from traincheck.rules.data.tc505_epochs_draw_the_same import EpochsDrawTheSame
from traincheck.rules.data.tc506_labels_in_order import LabelsInOrder
from traincheck.rules.data.tc507_batch_folded_into_one_row import BatchFoldedIntoOneRow
from traincheck.rules.data.tc508_evaluated_on_training_data import EvaluatedOnTrainingData
from traincheck.rules.data.tc510_seeded_again import SeededAgain
from traincheck.rules.data.tc511_ranks_drift_in_random_numbers import RanksDriftInRandomNumbers
from traincheck.rules.data.tc512_ranks_share_samples import RanksShareSamples
from traincheck.rules.data.tc513_samples_alike import SamplesAlike
from traincheck.rules.data.tc514_drawn_again import DrawnAgain
from traincheck.rules.data.tc515_ranks_draw_the_same import RanksDrawTheSame
from traincheck.rules.data.tc516_too_few_weights import TooFewWeights
from traincheck.rules.data.tc517_batch_not_used import BatchNotUsed
from traincheck.rules.data.tc518_seeded_for_each_sample import SeededForEachSample
from traincheck.rules.data.tc519_only_last_batch_used import OnlyLastBatchUsed
from traincheck.schema.protocols import Rule

RULES: tuple[Rule, ...] = (
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
)
