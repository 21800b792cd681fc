"""Remarks on the metrics of a run: numbers that are broken, and layers unlike the others.

These are remarks for a reader, not findings: they have no severity and change no exit status.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from statistics import median

from .series import Metrics

_FEW = 4  # layers or measured steps from which a comparison means something
_UNLIKE = 5.0  # times the median of all layers
_FAST = 1e-2  # update/weight ratio below which a layer is not remarkable
_SHARP = 0.05  # nats
_MOST = 6  # lines


def notable(metrics: Metrics) -> list[str]:
    """One line each for what stands out, the most serious first."""
    found = [*_not_finite(metrics), *_all_zero(metrics), *_collapsed(metrics), *_fast(metrics)]
    left = len(found) - _MOST
    return [*found[:_MOST], f"and {left} more"] if left > 0 else found


def _named(
    metrics: Metrics, subject: str, statistic: str
) -> Iterator[tuple[str, dict[int, float]]]:
    """Name and numbers in order of step of the metrics of one kind."""
    start, end = f"{subject}/", f"/{statistic}" if statistic else ""
    for key, values in metrics.items():
        if key.startswith(start) and key.endswith(end) and len(values) > 0:
            name = key[len(start) : len(key) - len(end)]
            yield name, dict(sorted(values.items()))


def _not_finite(metrics: Metrics) -> Iterator[str]:
    """The metric that was first not finite, or whose tensor was."""
    first: tuple[int, str] | None = None
    for key, values in metrics.items():
        counts = key.endswith("/nonfinite")
        for step, value in values.items():
            is_broken = value > 0 if counts else not math.isfinite(value)
            if is_broken and (first is None or step < first[0]):
                first = step, key
    if first is not None:
        yield f"{first[1]} is not finite since step {first[0]}, before any other"


def _all_zero(metrics: Metrics) -> Iterator[str]:
    """Tensors that were all zero in the last measured steps."""
    for subject in ("activation", "gradient"):
        for name, values in _named(metrics, subject, "zeros"):
            since = _since(values, lambda share: share == 1.0)
            if since is not None:
                yield f"{name}: every element of its {subject} is 0 since step {since}"


def _collapsed(metrics: Metrics) -> Iterator[str]:
    """Heads of attention that see one position alone."""
    for name, values in _named(metrics, "attention_entropy", ""):
        since = _since(values, lambda nats: nats < _SHARP)
        if since is not None:
            last = values[max(values)]
            yield f"{name}: entropy {last:.2g} nats, below {_SHARP} since step {since}"


def _fast(metrics: Metrics) -> Iterator[str]:
    """Layers that change much faster than most, and faster and faster."""
    ratios = dict(_named(metrics, "update", "ratio"))
    last = {name: values[max(values)] for name, values in ratios.items()}
    usual = median(last.values()) if len(last) >= _FEW else 0.0
    for name, value in last.items():
        tail = list(ratios[name].values())[-_FEW:]
        # A parameter that begins at 0 moves fast at first, and less so from then on
        rises = len(tail) == _FEW and all(before <= after for before, after in pairwise(tail))
        if usual and value > max(_FAST, _UNLIKE * usual) and rises:
            times = value / usual
            yield f"{name}: update/weight {value:.2g} is {times:.2g} times the median's, and rises"


def _since(values: Mapping[int, float], holds: Callable[[float], bool]) -> int | None:
    """The step from which on a number has always held, if these are enough steps."""
    since, count = None, 0
    for step, value in values.items():
        if holds(value):
            since, count = (step if since is None else since), count + 1
        else:
            since, count = None, 0
    return since if count >= _FEW else None
