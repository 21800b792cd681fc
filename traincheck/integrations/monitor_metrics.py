"""The metrics of a monitor that are functions of the program."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from traincheck.errors import UsageError
from traincheck.integrations.monitor_results import MonitorResults
from traincheck.schema.metrics.sums import Combine

if TYPE_CHECKING:
    from traincheck.collect.monitor.functions import FunctionMetric

_SUBJECTS = (
    "activation",
    "activation_difference",
    "parameter",
    "parameter_difference",
    "gradient",
)

Metric = Callable[..., Any]


class MonitorMetrics(MonitorResults):
    """Adds metrics; see `Monitor`."""

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__(logger)
        self._metrics: dict[str, dict[str, FunctionMetric]] = {name: {} for name in _SUBJECTS}

    def add_activation_metric(
        self,
        metric_name: str,
        metric_fn: Metric,
        metric_regex: str = ".*",
        metric_aggregation_fn: Any = None,
        *,
        per: str | int | None = None,
    ) -> None:
        """Add a metric of the outputs of modules.

        Args:
            metric_name: last part of its keys, ``activation/{module}/{metric_name}``.
            metric_fn: gets an output, detached; returns a number, a tensor or a mapping. It must
                not change its argument. The mean of all values is taken; a single number counts as
                much as the output has elements.
            metric_regex: what the name of a module must match from its beginning.
            metric_aggregation_fn: makes a number, or a mapping, of all values of a step as one
                tensor; or "mean", "sum", "max", "min", "last".
            per: "row", "channel", "feature" or a dimension: one number for each index of it.

        Raises:
            ValueError: there is a metric of this name.
        """
        self._add("activation", metric_name, metric_fn, metric_regex, metric_aggregation_fn, per)

    def add_activation_difference_metric(
        self,
        metric_name: str,
        metric_fn: Metric,
        metric_regex: str = ".*",
        metric_aggregation_fn: Any = None,
        *,
        per: str | int | None = None,
    ) -> None:
        """Add a metric of an output and that of the reference: ``metric_fn(output, reference)``.

        Raises:
            ValueError: there is a metric of this name.
        """
        subject = "activation_difference"
        self._add(subject, metric_name, metric_fn, metric_regex, metric_aggregation_fn, per)

    def add_parameter_metric(
        self, metric_name: str, metric_fn: Metric, metric_regex: str = ".*", *, per: Any = None
    ) -> None:
        """Add a metric of parameters.

        Raises:
            ValueError: there is a metric of this name.
        """
        self._add("parameter", metric_name, metric_fn, metric_regex, None, per)

    def add_parameter_difference_metric(
        self, metric_name: str, metric_fn: Metric, metric_regex: str = ".*", *, per: Any = None
    ) -> None:
        """Add a metric of a parameter and that of the reference.

        Raises:
            ValueError: there is a metric of this name.
        """
        self._add("parameter_difference", metric_name, metric_fn, metric_regex, None, per)

    def add_gradient_metric(
        self, metric_name: str, metric_fn: Metric, metric_regex: str = ".*", *, per: Any = None
    ) -> None:
        """Add a metric of gradients; parameters without a gradient have none.

        Raises:
            ValueError: there is a metric of this name.
        """
        self._add("gradient", metric_name, metric_fn, metric_regex, None, per)

    def _add(
        self, subject: str, name: str, function: Metric, regex: str, aggregate: Any, per: Any
    ) -> None:
        from traincheck.collect.monitor.functions import FunctionMetric

        if name in self._metrics[subject]:
            raise ValueError(f"there is a metric {name!r} of {subject.replace('_', ' ')}s already")
        if not (aggregate is None or callable(aggregate) or aggregate in Combine.ALL):
            raise UsageError(
                f"metric_aggregation_fn is {aggregate!r}",
                fix=f"use a function, or one of {', '.join(sorted(Combine.ALL))}",
            )
        self._metrics[subject][name] = FunctionMetric(
            name, function, re.compile(regex), aggregate, per
        )
