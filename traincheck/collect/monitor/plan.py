"""Which sums are taken of which tensor."""

from __future__ import annotations

import re
from collections.abc import Callable

from traincheck.schema.metrics.requests import MetricRequest, MonitorView

_MOST_PLANS = 1 << 16  # names; a program may make modules in each step


class Plan:
    """The requests of a monitor, by name of module or variable.

    Args:
        view: what is recorded.
    """

    def __init__(self, view: MonitorView) -> None:
        self.view = view
        self._include, self._exclude = re.compile(view.modules), re.compile(view.exclude or r"(?!)")
        self._requests: dict[str, list[tuple[Callable[[str], object], MetricRequest]]] = {}
        for request in view.requests:
            match = re.compile(request.modules).match
            self._requests.setdefault(request.on, []).append((match, request))
        self._columns: dict[tuple[str, str], frozenset[str] | None] = {}
        self._per: dict[tuple[str, str], tuple[MetricRequest, ...]] = {}

    def has(self, subject: str) -> bool:
        """Whether anything is requested of this kind of tensor."""
        return subject in self._requests

    def includes(self, name: str) -> bool:
        """Whether a module or variable is monitored."""
        return bool(self._include.match(name)) and not self._exclude.match(name)

    def columns(self, subject: str, name: str) -> frozenset[str] | None:
        """The sums to take of a tensor; None for nothing."""
        key = (subject, name)
        found = self._columns.get(key, ...)
        if found is not ...:
            return found
        if len(self._columns) >= _MOST_PLANS:
            self._columns.clear()
        made = self._columns[key] = self._make(subject, name)
        return made

    def _make(self, subject: str, name: str) -> frozenset[str] | None:
        if not self.includes(name):
            return None
        wanted = [r.columns for r in self._matching(subject, name) if not r.per]
        if subject == "parameter":  # the ratio of an update is to its parameter
            wanted += [frozenset({"squares"}) for _ in self._ratios(name)]
        return frozenset[str]().union(*wanted) if wanted else None

    def _ratios(self, name: str) -> list[MetricRequest]:
        return [r for r in self._matching("update", name) if "ratio" in r.statistics]

    def _matching(self, subject: str, name: str) -> list[MetricRequest]:
        return [request for match, request in self._requests.get(subject, ()) if match(name)]

    def sliced(self, subject: str, name: str) -> tuple[MetricRequest, ...]:
        """Requests for one number an index of a dimension."""
        key = (subject, name)
        found = self._per.get(key)
        if found is None:
            if len(self._per) >= _MOST_PLANS:
                self._per.clear()
            asked = self._matching(subject, name) if self.includes(name) else ()
            found = self._per[key] = tuple(request for request in asked if request.per)
        return found

    def attention(self, name: str) -> frozenset[str]:
        """Names of the metrics of attention that are wanted of a module."""
        if not self.includes(name):
            return frozenset()
        return frozenset(s for r in self._matching("attention", name) for s in r.statistics)

    @property
    def measures_parameters(self) -> bool:
        """Whether parameters are measured, also for the ratios of updates."""
        ratios = (r for _, r in self._requests.get("update", ()))
        return self.has("parameter") or any("ratio" in r.statistics for r in ratios)
