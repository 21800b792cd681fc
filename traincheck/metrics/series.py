"""Metrics by step and key, as a monitor has recorded them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


class Metrics(Mapping[str, Mapping[int, float]]):
    """A number for each key and step: ``metrics["gradient/Net.fc1.weight/norm"][20]``.

    Attributes:
        notes: what limits the numbers, for people.
        failed: metrics that failed, with ``metric``, ``on``, ``error`` and ``step``.
    """

    def __init__(self, series: Mapping[str, Mapping[int, float]]) -> None:
        self._series = {key: dict(values) for key, values in series.items()}
        self.notes: list[str] = []
        self.failed: list[dict[str, Any]] = []

    def __getitem__(self, key: str) -> Mapping[int, float]:
        return self._series[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._series)

    def __len__(self) -> int:
        return len(self._series)

    def __eq__(self, other: object) -> bool:
        """Whether all keys, steps and numbers are the same; NaN equals NaN."""
        if not isinstance(other, Metrics) or self.keys() != other.keys():
            return False
        return all(_is_same(values, other[key]) for key, values in self.items())

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<metrics: {len(self)} keys, {len(self.steps)} steps>"

    def _repr_html_(self) -> str:
        from traincheck.page.notebook import metrics_html

        return metrics_html(self)

    @property
    def steps(self) -> list[int]:
        """All steps that have a number."""
        return sorted({step for values in self._series.values() for step in values})

    def select(self, *patterns: str, steps: range | None = None) -> Metrics:
        """The metrics whose key matches one of ``patterns``; ``*`` matches anything.

        Args:
            patterns: such as ``"activation/*/rms"``; none for all.
            steps: only these steps; None for all.
        """
        chosen = {
            key: {s: v for s, v in values.items() if steps is None or s in steps}
            for key, values in self._series.items()
            if not patterns or any(fnmatchcase(key, pattern) for pattern in patterns)
        }
        found = Metrics({key: values for key, values in chosen.items() if values})
        found.notes, found.failed = self.notes, self.failed
        return found

    def to_dict(self) -> dict[int, dict[str, float]]:
        """The numbers by step and then by key."""
        out: dict[int, dict[str, float]] = {step: {} for step in self.steps}
        for key, values in self._series.items():
            for step, value in values.items():
                out[step][key] = value
        return out

    def to_dataframe(self) -> pd.DataFrame:
        """Columns ``step``, ``key`` and ``value``, by step and then by key."""
        import pandas  # not at the top: pages, live views and training itself load this module

        rows = self.rows()
        return pandas.DataFrame(
            {
                "step": pandas.Series([step for step, _, _ in rows], dtype="int64"),
                "key": pandas.Series([key for _, key, _ in rows], dtype="str"),
                "value": pandas.Series([value for _, _, value in rows], dtype="float64"),
            }
        )

    def rows(self) -> list[tuple[int, str, float]]:
        """Step, key and number, by step and then by key."""
        return sorted(
            ((step, key, value) for key, values in self.items() for step, value in values.items()),
            key=lambda row: row[:2],
        )


def _is_same(one: Mapping[int, float], other: Mapping[int, float]) -> bool:
    return one.keys() == other.keys() and all(
        value == other[step] or (math.isnan(value) and math.isnan(other[step]))
        for step, value in one.items()
    )
