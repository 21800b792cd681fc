"""Rules about parameters and the optimizer that holds them, by code."""

from __future__ import annotations

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
from traincheck.schema.protocols import Rule

RULES: tuple[Rule, ...] = (
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
)
