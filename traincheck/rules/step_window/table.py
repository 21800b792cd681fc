"""Rules about backward, clipping, step and zero_grad, by code."""

from __future__ import annotations

from traincheck.rules.step_window.tc201_missing_zero_grad import MissingZeroGrad
from traincheck.rules.step_window.tc202_missing_step import MissingStep
from traincheck.rules.step_window.tc203_step_without_gradient import StepWithoutGradient
from traincheck.rules.step_window.tc204_gradients_lost_in_accumulation import (
    GradientsLostInAccumulation,
)
from traincheck.rules.step_window.tc205_clip_after_step import ClipAfterStep
from traincheck.rules.step_window.tc206_clip_scaled_gradients import ClipScaledGradients
from traincheck.rules.step_window.tc207_scaler_bypassed import ScalerBypassed
from traincheck.rules.step_window.tc208_scaler_skips_every_step import ScalerSkipsEveryStep
from traincheck.rules.step_window.tc212_same_loss_twice import SameLossTwice
from traincheck.rules.step_window.tc214_partial_accumulation_window import PartialAccumulationWindow
from traincheck.rules.step_window.tc215_loss_not_divided import LossNotDivided
from traincheck.rules.step_window.tc218_betas_swapped import BetasSwapped
from traincheck.rules.step_window.tc219_optimizer_stepped_twice import OptimizerSteppedTwice
from traincheck.rules.step_window.tc223_optimizer_recreated_each_epoch import (
    OptimizerRecreatedEachEpoch,
)
from traincheck.rules.step_window.tc224_clip_grad_without_gradients import ClipGradWithoutGradients
from traincheck.schema.protocols import Rule

RULES: tuple[Rule, ...] = (
    MissingZeroGrad(),
    MissingStep(),
    StepWithoutGradient(),
    GradientsLostInAccumulation(),
    ClipAfterStep(),
    ClipScaledGradients(),
    ScalerBypassed(),
    ScalerSkipsEveryStep(),
    SameLossTwice(),
    PartialAccumulationWindow(),
    LossNotDivided(),
    BetasSwapped(),
    OptimizerSteppedTwice(),
    OptimizerRecreatedEachEpoch(),
    ClipGradWithoutGradients(),
)
