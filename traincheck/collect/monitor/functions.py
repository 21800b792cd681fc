"""Metrics that are functions of the program, fenced: a failure switches one off, nothing else."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from traincheck.collect.tensors.reading import detached
from traincheck.collect.tensors.sums import local_part
from traincheck.handlers import give_back
from traincheck.schema.metrics.requests import DIMENSIONS
from traincheck.schema.metrics.sums import Combine

_MOST_SLICES = 4096


@dataclass(frozen=True, slots=True, eq=False)
class FunctionMetric:
    """One metric.

    Attributes:
        name: last part of its keys.
        function: gets the tensor, and that of the reference for a difference; returns a number, a
        tensor, or a mapping of these.
        regex: what names must match from their beginning.
        aggregate: a word in `Combine.ALL`, or a function of all values of a step as one tensor.
        per: a dimension by number or a word in DIMENSIONS: the function gets each slice; None for
        the whole tensor.
    """

    name: str
    function: Callable[..., Any]
    regex: re.Pattern[str]
    aggregate: Any = None
    per: str | int | None = None


class FunctionMetrics:
    """Runs metrics and collects their values of one step.

    Args:
        on_failure: called with metric, name and error when a metric fails, once for each metric.
    """

    def __init__(self, on_failure: Callable[[str, str, Exception], None]) -> None:
        self._on_failure = on_failure
        self._off: set[tuple[str, str]] = set()  # kind of tensor and metric that failed
        self._means: dict[str, list[float]] = {}  # weight, weighted sum
        self._late: list[tuple[str, float, torch.Tensor]] = []  # the same on a device
        self._kept: dict[str, tuple[Any, list[torch.Tensor]]] = {}  # for other aggregations

    def run(
        self,
        subject: str,
        name: str,
        metrics: Mapping[str, FunctionMetric],
        *tensors: torch.Tensor,
        weight: float = 1.0,
    ) -> None:
        """Run the metrics that are about a tensor.

        Args:
            subject: kind of tensor, first part of the keys.
            name: of the module or variable.
            metrics: by name.
            tensors: the tensor, and that of the reference.
            weight: of a number that a metric returns, such as how many elements it is of.
        """
        if not metrics:
            return
        own = tuple(detached(local_part(tensor)[0]) for tensor in tensors)
        with torch.no_grad():
            for metric in metrics.values():
                if metric.regex.match(name) and (subject, metric.name) not in self._off:
                    self._guarded(subject, name, metric, own, weight)

    def _guarded(
        self,
        subject: str,
        name: str,
        metric: FunctionMetric,
        tensors: tuple[torch.Tensor, ...],
        weight: float,
    ) -> None:
        try:
            if metric.per is None:
                value = metric.function(*tensors)
                self.log(f"{subject}/{name}/{metric.name}", value, metric.aggregate, weight)
                return
            for suffix, parts, share in _slices(tensors, metric.per):
                value = metric.function(*parts)
                key = f"{subject}/{name}{suffix}/{metric.name}"
                self.log(key, value, metric.aggregate, weight * share)
        except Exception as error:  # training must go on whatever the metric does
            give_back(error)
            self._off.add((subject, metric.name))
            self._on_failure(metric.name, f"{subject}/{name}", error)

    def log(self, key: str, value: Any, aggregate: Any = None, weight: float = 1.0) -> None:
        """Add a value of this step.

        Args:
            key: of the metric.
            value: a number, a tensor of values, or a mapping of these.
            aggregate: as in `FunctionMetric`; None for the mean.
            weight: of a single number in a mean; each value in a tensor of several counts 1.

        Raises:
            TypeError: the value is none of these.
        """
        if type(value) is torch.Tensor and not value.dim() and aggregate is None and value.is_cpu:
            self._add(key, weight, float(value.item()) * weight)  # the usual case
            return
        if isinstance(value, Mapping):
            for part, one in value.items():
                self.log(f"{key}/{part}", one, aggregate, weight)
            return
        tensor = value if isinstance(value, torch.Tensor) else _number(value)
        tensor = detached(tensor)
        if aggregate not in (None, Combine.MEAN):
            self._kept.setdefault(key, (aggregate, []))[1].append(tensor.reshape(-1).clone())
            return
        if tensor.dim():
            weight = float(tensor.numel())
            total = tensor.sum(dtype=torch.float64)
        else:
            total = tensor.double() * weight
        if total.is_cpu:
            self._add(key, weight, float(total.item()))
        else:
            self._late.append((key, weight, total))

    def _add(self, key: str, weight: float, total: float) -> None:
        known = self._means.get(key)
        if known is None:
            self._means[key] = [weight, total]
        else:
            known[0] += weight
            known[1] += total

    def take_weighted(self) -> dict[str, list[float]]:
        """Weight and weighted sum of the means of the step; the next step begins empty."""
        self._read()
        means, self._means = self._means, {}
        return means

    def _read(self) -> None:
        """Read what is on a device."""
        late, self._late = self._late, []
        for key, weight, total in late:
            self._add(key, weight, float(total.item()))

    def take(self) -> dict[str, float]:
        """The values of the step by key, aggregated; the next step begins empty."""
        means = self.take_weighted()
        found = {key: total / w if w else math.nan for key, (w, total) in means.items()}
        kept, self._kept = self._kept, {}
        for key, (aggregate, tensors) in kept.items():
            try:
                found.update(_aggregated(key, aggregate, torch.cat(tensors)))
            except Exception as error:  # training must go on whatever the function does
                give_back(error)
                self._on_failure(key, "aggregation", error)
        return found

    def absorb(self, other: FunctionMetrics) -> None:
        """Move the means of another collection here."""
        for key, (weight, total) in other._means.items():
            self._add(key, weight, total)
        self._late += other._late
        other.discard()

    def discard(self) -> None:
        """Forget the values of a step."""
        self._means, self._late, self._kept = {}, [], {}


def _number(value: Any) -> torch.Tensor:
    if not isinstance(value, (int, float)) and not hasattr(value, "__float__"):
        raise TypeError(f"a metric is a number, a tensor or a mapping, not {type(value).__name__}")
    return torch.tensor(float(value), dtype=torch.float64, device="cpu")


def _aggregated(key: str, aggregate: Any, values: torch.Tensor) -> dict[str, float]:
    if callable(aggregate):
        made = aggregate(values)
        if isinstance(made, Mapping):
            return {f"{key}{part}": float(one) for part, one in made.items()}
        return {key: float(made)}
    wide = values.double()
    if aggregate == Combine.LAST:
        return {key: float(wide[-1])}
    if aggregate == Combine.SUM:
        return {key: float(wide.sum())}
    return {key: float(wide.max() if aggregate == Combine.MAX else wide.min())}


def _slices(
    tensors: tuple[torch.Tensor, ...], per: str | int
) -> Iterator[tuple[str, tuple[torch.Tensor, ...], float]]:
    """Suffix of the name, the tensors, and their share of the whole."""
    dimension = DIMENSIONS[per] if isinstance(per, str) else per
    parts = [tensor.unbind(dimension)[:_MOST_SLICES] for tensor in tensors]
    label = per if isinstance(per, str) else f"dim{per}"
    for index, own in enumerate(zip(*parts)):
        yield f".{label}_{index}", own, 1.0 / len(parts[0])
