"""Metrics as text: one table for each kind of tensor, with first and last number and the trend."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from traincheck.schema.words import printable

from .series import Metrics

_BARS = "▁▂▃▄▅▆▇█"
_TREND = 8  # characters
_MOST_STATISTICS = 4  # that fit beside each other
_Table = Mapping[str, Mapping[str, Mapping[int, float]]]


def layer_tables(metrics: Metrics, limit: int = 40) -> Iterator[str]:
    """The lines of the tables by module and variable.

    Args:
        metrics: what to show.
        limit: rows of each table; 0 for all.
    """
    for subject, rows in _by_subject(metrics).items():
        names = list(dict.fromkeys(s for row in rows.values() for s in row))
        for start in range(0, len(names), _MOST_STATISTICS):
            yield from _layers(subject, rows, names[start : start + _MOST_STATISTICS], limit)
            yield ""


def step_table(metrics: Metrics, limit: int = 40) -> Iterator[str]:
    """The lines of a table with one row for each step and number."""
    rows = metrics.rows()
    shown = rows if not limit else rows[:limit]
    width = max((len(str(step)) for step, _, _ in shown), default=0)
    yield f"{'step':>{max(width, 4)}}  {'value':>10}  key"
    for step, key, value in shown:
        yield f"{step:>{max(width, 4)}}  {number(value):>10}  {printable(key)}"
    if len(shown) < len(rows):
        yield f"... and {len(rows) - len(shown):,} more: --limit 0, or --select"


def _by_subject(metrics: Metrics) -> dict[str, dict[str, dict[str, Mapping[int, float]]]]:
    """Kind of tensor -> name -> statistic -> numbers."""
    found: dict[str, dict[str, dict[str, Mapping[int, float]]]] = defaultdict(dict)
    for key, values in metrics.items():
        before, _, rest = key.rpartition("eval/") if key.startswith("eval/") else ("", "", key)
        subject, _, rest = rest.partition("/")
        name, _, statistic = rest.rpartition("/")
        label = f"{subject} in evaluation" if key.startswith("eval/") else subject
        found[label].setdefault(before + (name or rest), {})[statistic if name else ""] = values
    return found


def _layers(subject: str, rows: _Table, names: Sequence[str], limit: int) -> Iterator[str]:
    # Names of terms, such as W_t, stay
    title = subject if subject.startswith("RCC") else subject.replace("_", " ")
    chosen = [(name, row) for name, row in rows.items() if any(s in row for s in names)]
    shown = chosen if not limit else chosen[:limit]
    width = max(len(title), *(len(printable(name)) for name, _ in shown))
    blank = " " * width
    if any(names):
        label = "".join(f"  {name:<{10 + 2 + 10 + 2 + _TREND}}" for name in names)
        yield (blank + label).rstrip()
    columns = f"  {'first':>10}  {'last':>10}  {'trend':<{_TREND}}" * len(names)
    yield f"{title:<{width}}{columns}".rstrip()
    for name, row in shown:
        cells = "".join(_cells(row.get(statistic, {})) for statistic in names)
        yield f"{printable(name):<{width}}{cells}".rstrip()
    if len(shown) < len(chosen):
        yield f"... and {len(chosen) - len(shown):,} more: --limit 0, or --select"


def _cells(values: Mapping[int, float]) -> str:
    if not values:
        return f"  {'':>10}  {'':>10}  {'':<{_TREND}}"
    ordered = [values[step] for step in sorted(values)]
    trend = sparkline(ordered, _TREND)
    return f"  {number(ordered[0]):>10}  {number(ordered[-1]):>10}  {trend:<{_TREND}}"


def number(value: float) -> str:
    """A number with four digits."""
    return f"{value:.4g}"


def sparkline(values: Sequence[float], width: int) -> str:
    """The course of some numbers as bars, each the mean of as many numbers as needed.

    A number that is not finite is shown as ``!``.
    """
    parts = list(values)
    if len(values) > width:
        bounds = [round(i * len(values) / width) for i in range(width + 1)]
        pieces = [values[a:b] for a, b in pairwise(bounds)]
        parts = [sum(piece) / len(piece) for piece in pieces]
    finite = [part for part in parts if math.isfinite(part)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    span = high - low
    return "".join(
        "!" if not math.isfinite(part) else _bar((part - low) / span if span else 0.5)
        for part in parts
    )


def _bar(share: float) -> str:
    return _BARS[min(int(share * len(_BARS)), len(_BARS) - 1)]
