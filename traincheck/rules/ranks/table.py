"""Rules about distributed training, by code."""

from __future__ import annotations

from traincheck.rules.ranks.tc085_accumulated_gradients_rescaled import (
    AccumulatedGradientsRescaled,
)
from traincheck.rules.ranks.tc086_replicated_parameter_differs import ReplicatedParameterDiffers
from traincheck.rules.ranks.tc087_gradients_reduced_over_one_rank import (
    GradientsReducedOverOneRank,
)
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
from traincheck.schema.protocols import Rule

RULES: tuple[Rule, ...] = (
    AccumulatedGradientsRescaled(),
    ReplicatedParameterDiffers(),
    GradientsReducedOverOneRank(),
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
)
