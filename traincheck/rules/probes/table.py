"""Rules about the results of probes, by code."""

from __future__ import annotations

from traincheck.rules.probes.tc001_samples_mixed import SamplesMixed
from traincheck.rules.probes.tc002_gradient_not_of_loss import GradientNotOfLoss
from traincheck.rules.probes.tc003_place_in_batch_matters import PlaceInBatchMatters
from traincheck.rules.probes.tc004_padding_takes_part import PaddingTakesPart
from traincheck.rules.probes.tc005_padding_vector_not_zero import PaddingVectorNotZero
from traincheck.rules.probes.tc006_input_overwritten import InputOverwritten
from traincheck.rules.probes.tc007_later_tokens_seen import LaterTokensSeen
from traincheck.rules.probes.tc008_statistics_learn_in_evaluation import (
    StatisticsLearnInEvaluation,
)
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
)
