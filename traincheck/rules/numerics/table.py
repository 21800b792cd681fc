"""Rules about sizes of values, gradients and updates, by code."""

from __future__ import annotations

from traincheck.rules.numerics.tc701_non_finite_value import NonFiniteValue
from traincheck.rules.numerics.tc702_exploding_gradient import ExplodingGradient
from traincheck.rules.numerics.tc703_vanishing_gradient import VanishingGradient
from traincheck.rules.numerics.tc704_gradient_all_zero import GradientAllZero
from traincheck.rules.numerics.tc705_dead_units import DeadUnits
from traincheck.rules.numerics.tc706_saturated_activation import SaturatedActivation
from traincheck.rules.numerics.tc707_exploding_activation import ExplodingActivation
from traincheck.rules.numerics.tc708_poor_initialization import PoorInitialization
from traincheck.rules.numerics.tc709_update_ratio import UpdateRatio
from traincheck.rules.numerics.tc710_loss_not_decreasing import LossNotDecreasing
from traincheck.rules.numerics.tc711_constant_loss import ConstantLoss
from traincheck.rules.numerics.tc712_overfitting import Overfitting
from traincheck.rules.numerics.tc713_class_imbalance import ClassImbalance
from traincheck.rules.numerics.tc714_dead_filters import DeadFilters
from traincheck.rules.numerics.tc715_parameter_gradient_zero import ParameterGradientZero
from traincheck.rules.numerics.tc716_evaluation_not_finite import EvaluationNotFinite
from traincheck.rules.numerics.tc717_evaluation_loss_constant import EvaluationLossConstant
from traincheck.rules.numerics.tc718_recomputation_differs import RecomputationDiffers
from traincheck.schema.protocols import Rule

RULES: tuple[Rule, ...] = (
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
)
