"""Rules about the arguments of losses, by code."""

from __future__ import annotations

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
from traincheck.schema.protocols import Rule

RULES: tuple[Rule, ...] = (
    CrossEntropyOfProbabilities(),
    LogitLossOfProbabilities(),
    NllLossWithoutLog(),
    LossBroadcasts(),
    NoValidLabel(),
    SingleClass(),
    EndTokenNotLearned(),
    MicroBatchesWeightedEqually(),
    ReductionsMixed(),
    LabelsShiftedTwice(),
    CtcBlankInTargets(),
    TargetOutOfRange(),
    BroadcastInOwnLoss(),
    PaddingAmongLabels(),
    SoftmaxOverOneElement(),
    ZeroLabelInMarginLoss(),
    MultiLabelCrossEntropy(),
    TargetOutsideActivationRange(),
    LabelsNotShifted(),
)
