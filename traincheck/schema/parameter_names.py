"""Meanings of names: of parameters, and of the classes of averages."""

from __future__ import annotations

import re

_UNOWNED = re.compile(r"opt\d+\[\d+\]\.\d+\Z")
_BIASES = frozenset({"bias", "b"})
_WEIGHTS = (
    "weight", "weight_v", "weight_g", "weight_orig", "parametrizations.weight.original",
    "parametrizations.weight.original0", "parametrizations.weight.original1", "W", "w",
)  # fmt: skip
# Classes of averages: AveragedModel of torch, ModelEmaV2 of timm, EMA of ema_pytorch ...
AVERAGE_CLASS = re.compile(r"(Averaged?Model|(Moving|Running)Average|EMA|Ema(?![a-z])|SWA)\w*\Z")


def is_unowned(name: str) -> bool:
    """Whether this is the name of a tensor that an optimizer holds and no module owns."""
    return _UNOWNED.match(name) is not None


def paired_weights(name: str) -> frozenset[str]:
    """Possible names of the weight that belongs to a bias; empty for other parameters.

    They include the names that weight_norm, spectral_norm and parametrizations use, and usual names
    in hand-written layers.
    """
    module, _, leaf = name.rpartition(".")
    if leaf not in _BIASES:
        return frozenset()
    return frozenset(f"{module}.{weight}" for weight in _WEIGHTS)
