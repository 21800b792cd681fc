"""The rules about what is behind a loss, by code."""

from __future__ import annotations

from traincheck.rules.provenance.tc030_constant_loss_term import ConstantLossTerm
from traincheck.rules.provenance.tc031_dropped_loss_sum import DroppedLossSum
from traincheck.rules.provenance.tc032_mean_weighted_by_itself import MeanWeightedByItself
from traincheck.rules.provenance.tc033_only_ignored_labels_trained import OnlyIgnoredLabelsTrained
from traincheck.rules.provenance.tc034_reference_with_dropout import ReferenceWithDropout
from traincheck.schema.protocols import Rule

RULES: tuple[Rule, ...] = (
    ConstantLossTerm(),
    DroppedLossSum(),
    MeanWeightedByItself(),
    OnlyIgnoredLabelsTrained(),
    ReferenceWithDropout(),
)
