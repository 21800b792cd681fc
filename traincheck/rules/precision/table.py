"""Rules about dtypes and mixed precision, by code."""

from __future__ import annotations

from traincheck.rules.precision.tc801_autocast_without_effect import AutocastWithoutEffect
from traincheck.rules.precision.tc802_position_buffer_in_half import PositionBufferInHalf
from traincheck.rules.precision.tc803_eps_underflows import EpsUnderflows
from traincheck.rules.precision.tc804_loss_not_scaled import LossNotScaled
from traincheck.rules.precision.tc805_parameters_in_half import ParametersInHalf
from traincheck.rules.precision.tc806_loss_in_half import LossInHalf
from traincheck.rules.precision.tc807_optimizer_state_in_half import OptimizerStateInHalf
from traincheck.schema.protocols import Rule

RULES: tuple[Rule, ...] = (
    AutocastWithoutEffect(),
    PositionBufferInHalf(),
    EpsUnderflows(),
    LossNotScaled(),
    ParametersInHalf(),
    LossInHalf(),
    OptimizerStateInHalf(),
)
