"""Rules about warnings of torch, by code."""

from __future__ import annotations

from traincheck.rules.torch_warnings.tc950_torch_warning import TorchWarning
from traincheck.rules.torch_warnings.tc951_torch_advice import TorchAdvice
from traincheck.schema.protocols import Rule

RULES: tuple[Rule, ...] = (
    TorchWarning(),
    TorchAdvice(),
)
