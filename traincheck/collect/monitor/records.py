"""Numbers of a step as records of a trace."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from os import getpid
from typing import Any

from traincheck.collect.monitor.numbers import StepNumbers
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
