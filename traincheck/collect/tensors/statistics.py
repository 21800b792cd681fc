"""Statistics and normalizations: over how many elements each result is taken.

Only sizes are read. A value minus its own mean is found by the identity of both tensors.
"""

from __future__ import annotations

import sys
import weakref
from math import prod
from typing import NamedTuple

import torch

from traincheck.collect.tensors.operation_looks import Call, Look, Numbers, reduction
from traincheck.collect.tensors.reading import PLAIN_TYPES

_MEANS = frozenset({"mean"})
_DIFFERENCES = frozenset({"sub", "sub_", "__sub__", "__isub__", "subtract"})
_SPREADS = frozenset({"std", "var", "std_mean", "var_mean"})
_LENGTHS = frozenset({"normalize"})
_OF_LAST_DIMS = frozenset({"layer_norm", "rms_norm"})
_OF_GROUPS = frozenset({"group_norm"})
_NAMES = _MEANS | _DIFFERENCES | _SPREADS | _LENGTHS | _OF_LAST_DIMS | _OF_GROUPS
_MOST_MEANS = 64  # of a step
_FRAMES = 12  # at most, between this module and the function that calls a norm


def is_of_normalize() -> bool:
    """Whether `torch.nn.functional.normalize` makes this call."""
    frame = sys._getframe(1)
    place = ("torch.nn.functional", "normalize")
    for _ in range(_FRAMES):
        if (frame.f_globals.get("__name__"), frame.f_code.co_name) == place:
            return True
        if frame.f_back is None:
            break
        frame = frame.f_back
    return False


class _Mean(NamedTuple):
    """The mean of a tensor. numbers: over how many elements it was taken."""

    result: weakref.ref[torch.Tensor]
    given: weakref.ref[torch.Tensor]
    numbers: Numbers


class Statistics:
    """Reads the calls of a step. Of means it remembers what they are of."""

    def __init__(self) -> None:
        self._means: dict[int, _Mean] = {}

    def clear(self) -> None:
        """Forget them: the step has ended."""
        self._means.clear()

    def looks(self, name: str) -> tuple[tuple[str, Look], ...]:
        """The numbers that are read of calls of a function."""
        return (("statistic", self._read),) if name in _NAMES else ()

    def _read(self, call: Call) -> Numbers | None:
        """The number of elements that each result is of, and whether a gradient is wanted."""
        given = call.given(0, "input", "self")
        if type(given) not in PLAIN_TYPES or not given.dim():
            return None
        if call.name in _DIFFERENCES:
            return self._difference(given, call.given(1, "other"))
        if call.name in _OF_GROUPS:
            groups = call.given(1, "num_groups")
            over = given[0].numel() / groups if given.dim() > 1 and len(given) else None
        elif call.name in _OF_LAST_DIMS:
            over = _last(call.given(1, "normalized_shape"))
        else:
            over = _over(call)
        if over is None:
            return None
        found: Numbers = {
            "over": float(over),
            "of": float(given.numel()),
            "gradient": float(given.requires_grad),
        }
        if call.name not in _MEANS:
            return found
        result = call.result
        if type(result) in PLAIN_TYPES and len(self._means) < _MOST_MEANS:
            self._means[id(result)] = _Mean(weakref.ref(result), weakref.ref(given), found)
        return None

    def _difference(self, given: torch.Tensor, other: object) -> Numbers | None:
        """The numbers of the mean that is subtracted, if it is one of the same tensor."""
        mean = self._means.get(id(other))
        if mean is None or mean.result() is not other or mean.given() is not given:
            return None
        return mean.numbers


def _over(call: Call) -> float | None:
    """The elements of a result along the dims that a call names."""
    if call.name in _LENGTHS and call.given(1, "p", "ord") not in (None, 2):
        return None
    numbers = reduction(call)
    over = None if numbers is None else numbers["over"]
    return over if isinstance(over, float) else None


def _last(shape: object) -> float | None:
    """The number of elements of the last dims of a tensor."""
    if not isinstance(shape, (tuple, list)) or not all(type(one) is int for one in shape):
        return None
    return float(prod(shape))
