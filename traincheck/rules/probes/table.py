"""Rules about the results of probes, by code."""

from __future__ import annotations

from traincheck.rules.probes.tc001_samples_mixed import SamplesMixed
from traincheck.rules.probes.tc002_gradient_not_of_loss import GradientNotOfLoss
from traincheck.schema.protocols import Rule

RULES: tuple[Rule, ...] = (
    SamplesMixed(),
    GradientNotOfLoss(),
)
