"""Rules about warnings of torch, by code."""

from __future__ import annotations

from traincheck.rules.torch_warnings.tc075_library_warning import LibraryWarning
from traincheck.rules.torch_warnings.tc076_library_advice import LibraryAdvice
from traincheck.rules.torch_warnings.tc950_torch_warning import TorchWarning
from traincheck.rules.torch_warnings.tc951_torch_advice import TorchAdvice
from traincheck.schema.protocols import Rule

RULES: tuple[Rule, ...] = (
    TorchWarning(),
    TorchAdvice(),
    LibraryWarning(),
    LibraryAdvice(),
)
