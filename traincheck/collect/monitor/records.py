"""The sums that are taken of each tensor, and the numbers of a step as records of a trace."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from os import getpid
from typing import Any

from traincheck.collect.monitor.numbers import StepNumbers
from traincheck.schema.metrics.requests import MetricRequest, MonitorView
from traincheck.schema.metrics.sums import Row

_MOST_NAMES = 1 << 17  # a program that makes names in each step must not grow the process
_MOST_SKIPPED = 1 << 12


class NameTable:
    """Numbers of the names of metrics. A name is written once, with the first numbers it has."""

    def __init__(self) -> None:
        self._pid = getpid()
        self._numbers: dict[str, int] = {}
        self._noted: set[tuple[bool, str]] = set()
        self._written: set[tuple[str, str]] = set()

    def record(
        self,
        numbers: StepNumbers,
        failed: Iterable[Mapping[str, str]] = (),
        *,
        evaluates: bool = False,
    ) -> dict[str, Any]:
        """The fields of a `metrics` event."""
        if self._pid != getpid():  # a forked child writes a file that has no names yet
            self.__init__()  # type: ignore[misc]
        names: dict[str, str] = {}
        fields: dict[str, Any] = {
            "sums": [[self._number(n, names), *_short(row)] for n, row in numbers.sums.items()],
            "values": [
                [self._number(n, names), weight, _plain(value)]
                for n, (weight, value) in numbers.values.items()
            ],
            "skipped": self._skips(numbers.skipped, names, evaluates=evaluates),
            "combine": self._combines(numbers.combine, names),
            "failed": list(failed),
            "names": names,
        }
        fields = {key: value for key, value in fields.items() if value}
        return {**fields, "evaluates": True} if evaluates else fields

    def _number(self, name: str, new: dict[str, str]) -> int:
        number = self._numbers.get(name)
        if number is None:
            if len(self._numbers) >= _MOST_NAMES:
                self._numbers.clear()
            number = self._numbers[name] = len(self._numbers)
            new[str(number)] = name
        return number

    def _skips(
        self, skipped: Mapping[str, str], new: dict[str, str], *, evaluates: bool
    ) -> dict[str, str]:
        found = {n: why for n, why in skipped.items() if (evaluates, n) not in self._noted}
        if len(self._noted) + len(found) > _MOST_SKIPPED:
            return {}
        self._noted.update((evaluates, name) for name in found)
        return {str(self._number(name, new)): why for name, why in found.items()}

    def _combines(self, combine: Mapping[str, str], new: dict[str, str]) -> dict[str, str]:
        found = [(n, how) for n, how in combine.items() if (n, how) not in self._written]
        self._written.update(found)
        return {str(self._number(name, new)): how for name, how in found}


def _short(row: Row) -> Row:
    end = len(row)
    while end and row[end - 1] is None:
        end -= 1
    return row[:end]


def _plain(value: float) -> float | str | None:
    if math.isfinite(value):
        return value
    return None if math.isnan(value) else str(value)


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
            asked = self._matching("update", name)
            wanted += [frozenset({"squares"}) for r in asked if "ratio" in r.statistics]
        return frozenset[str]().union(*wanted) if wanted else None

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
