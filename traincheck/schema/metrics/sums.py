"""Sums over the elements of tensors, and the statistics that follow from them.

Sums of micro-batches, calls, ranks and shards add up to those of the whole. Means and norms do not,
so only sums are stored. Statistics are of the finite elements; ``nonfinite`` counts the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from traincheck.errors import UsageError, nearest

# The order of the numbers of a tensor in a trace.
COLUMNS = (
    "count",
    "sum",
    "squares",
    "minimum",
    "maximum",
    "zeros",
    "nonfinite",
    "absolutes",
    "cubes",
    "fourths",
)
COUNT, SUM, SQUARES, MINIMUM, MAXIMUM, ZEROS, NONFINITE, ABSOLUTES, CUBES, FOURTHS = range(
    len(COLUMNS)
)

# Numbers in the order of COLUMNS; None: not taken.
Row: TypeAlias = list["float | int | None"]
Numbers: TypeAlias = Sequence["float | int | None"]


@dataclass(frozen=True, slots=True)
class Statistic:
    """A number that follows from sums.

    Attributes:
        columns: the sums that it needs, beside the counts.
        of: computes it; None if it is not defined.
        help: what it is, in a few words.
    """

    columns: frozenset[str]
    of: Callable[[Numbers], float | None]
    help: str


def merge(into: Row, more: Numbers) -> None:
    """Add the sums of further elements. A column that one of both lacks is lost."""
    for index, (one, other) in enumerate(zip(into, more)):
        if index not in (MINIMUM, MAXIMUM):
            into[index] = None if one is None or other is None else one + other
            continue
        pick = min if index == MINIMUM else max
        if one is None or other is None:  # also where no element is finite
            into[index] = one if other is None else other
        else:
            into[index] = pick(one, other)


def merged(rows: Iterable[Numbers]) -> Row:
    """The sums of all ``rows`` together."""
    first, *rest = rows
    total = list(first)
    for row in rest:
        merge(total, row)
    return total


def divided(row: Numbers, replicas: int) -> Row:
    """The sums of one of several equal tensors, from the sums of all of them."""
    out = list(row)
    for index, number in enumerate(row):
        if index not in (MINIMUM, MAXIMUM) and number is not None:
            exact = isinstance(number, int) and number % replicas == 0
            out[index] = number // replicas if exact else number / replicas
    return out


def scaled(row: Numbers, factor: float) -> Row:
    """The sums of the elements times ``factor``, which is positive."""
    powers = {SUM: 1, SQUARES: 2, MINIMUM: 1, MAXIMUM: 1, ABSOLUTES: 1, CUBES: 3, FOURTHS: 4}
    return [
        number if number is None or index not in powers else number * factor ** powers[index]
        for index, number in enumerate(row)
    ]


def _finite(row: Numbers) -> int:
    return int(row[COUNT] or 0) - int(row[NONFINITE] or 0)


def _mean_of(column: int) -> Callable[[Numbers], float | None]:
    def mean(row: Numbers) -> float | None:
        number, count = row[column], _finite(row)
        return None if number is None or not count else number / count

    return mean


def _root(number: float | None) -> float | None:
    return None if number is None else math.sqrt(max(number, 0.0))


def _variance(row: Numbers) -> float | None:
    mean, square = _mean_of(SUM)(row), _mean_of(SQUARES)(row)
    return None if mean is None or square is None else max(square - mean * mean, 0.0)


def _norm(row: Numbers) -> float | None:
    number = row[SQUARES]
    return None if number is None else math.sqrt(number)


def _largest(row: Numbers) -> float | None:
    low, high = row[MINIMUM], row[MAXIMUM]
    return None if low is None or high is None else float(max(abs(low), abs(high)))


def _share_of_zeros(row: Numbers) -> float | None:
    zeros, count = row[ZEROS], row[COUNT]
    return None if zeros is None or not count else zeros / count


def _skewness(row: Numbers) -> float | None:
    first, second, third = (_mean_of(column)(row) for column in (SUM, SQUARES, CUBES))
    variance = _variance(row)
    if first is None or second is None or third is None or not variance:
        return None
    return (third - 3 * first * second + 2 * first**3) / math.pow(variance, 1.5)


def _kurtosis(row: Numbers) -> float | None:
    first, second, third, fourth = (
        _mean_of(column)(row) for column in (SUM, SQUARES, CUBES, FOURTHS)
    )
    variance = _variance(row)
    if first is None or second is None or third is None or fourth is None or not variance:
        return None
    return (fourth - 4 * first * third + 6 * first**2 * second - 3 * first**4) / variance**2


def _needing(*columns: str) -> frozenset[str]:
    return frozenset(columns)


STATISTICS = {
    "mean": Statistic(_needing("sum"), _mean_of(SUM), "mean"),
    "rms": Statistic(
        _needing("squares"), lambda r: _root(_mean_of(SQUARES)(r)), "root mean square"
    ),
    "norm": Statistic(_needing("squares"), _norm, "L2 norm of all elements"),
    "std": Statistic(
        _needing("sum", "squares"), lambda r: _root(_variance(r)), "standard deviation, divisor n"
    ),
    "var": Statistic(_needing("sum", "squares"), _variance, "variance, divisor n"),
    "min": Statistic(_needing("minimum"), lambda r: r[MINIMUM], "smallest element"),
    "max": Statistic(_needing("maximum"), lambda r: r[MAXIMUM], "largest element"),
    "absmax": Statistic(_needing("minimum", "maximum"), _largest, "largest absolute value"),
    "absmean": Statistic(_needing("sum", "absolutes"), _mean_of(ABSOLUTES), "mean absolute value"),
    "sum": Statistic(_needing("sum"), lambda r: r[SUM], "sum"),
    "zeros": Statistic(_needing("zeros"), _share_of_zeros, "share of elements that are exactly 0"),
    "nonfinite": Statistic(
        _needing("sum"), lambda r: r[NONFINITE], "number of elements that are NaN or infinite"
    ),
    "count": Statistic(_needing(), lambda r: r[COUNT], "number of elements"),
    "skewness": Statistic(_needing("sum", "squares", "cubes"), _skewness, "skewness"),
    "kurtosis": Statistic(
        _needing("sum", "squares", "cubes", "fourths"),
        _kurtosis,
        "kurtosis; 3 for a normal distribution",
    ),
}


def statistic(name: str) -> Statistic:
    """A statistic by its name.

    Raises:
        UsageError: there is none of this name.
    """
    found = STATISTICS.get(name)
    if found is None:
        raise UsageError(
            f"no statistic is called {name!r}",
            fix=f"did you mean {nearest(name, STATISTICS)}? There are {', '.join(STATISTICS)}",
        )
    return found


def is_taken(name: str, row: Numbers) -> bool:
    """Whether the sums that a statistic needs were taken."""
    needed = STATISTICS[name].columns
    return all(row[COLUMNS.index(column)] is not None for column in needed)
