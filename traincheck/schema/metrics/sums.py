"""Sums over the elements of tensors, the statistics that follow, and how metrics combine.

Sums of micro-batches, calls, ranks and shards combine to those of the whole: raw sums are added,
and sums of powers of deviations from the mean are combined pairwise (Chan, Golub and LeVeque 1979;
Pebay 2008), which does not cancel where the mean is large against the spread. Statistics are of
the finite elements; ``nonfinite`` counts the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from traincheck.errors import UsageError, suggested

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
    "mean",
    "m2",
    "m3",
    "m4",
)
COUNT, SUM, SQUARES, MINIMUM, MAXIMUM, ZEROS, NONFINITE, ABSOLUTES = range(8)
CUBES, FOURTHS = 8, 9  # raw sums of powers, which older traces have
MEAN, M2, M3, M4 = 10, 11, 12, 13  # of deviations from the mean
_POWERS = {SUM: 1, SQUARES: 2, MINIMUM: 1, MAXIMUM: 1, ABSOLUTES: 1, CUBES: 3, FOURTHS: 4}
_POWERS |= {MEAN: 1, M2: 2, M3: 3, M4: 4}
# Mean / std up to which raw sums in single precision give a moment to some 1e-3
_MOST_RATIO = {M2: 1e2, M3: 1e1, M4: 1e1}

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
    moments = _combined(into, more)
    for index in range(MEAN):
        one, other = into[index], more[index]
        if index not in (MINIMUM, MAXIMUM):
            into[index] = None if one is None or other is None else one + other
            continue
        pick = min if index == MINIMUM else max
        if one is None or other is None:  # also where no element is finite
            into[index] = one if other is None else other
        else:
            into[index] = pick(one, other)
    into[MEAN:] = moments


def _combined(one: Numbers, other: Numbers) -> Row:
    """Mean and moments of two sets of elements together, by the pairwise formulas."""
    if not _finite(one) or not _finite(other):
        return list((one if _finite(one) else other)[MEAN:])
    if (ours := one[MEAN]) is None or (theirs := other[MEAN]) is None:
        return [None] * 4
    a, b = _finite(one), _finite(other)
    n = a + b
    d = theirs - ours
    out: Row = [ours + d * b / n, None, None, None]
    if (a2 := one[M2]) is not None and (b2 := other[M2]) is not None:
        out[1] = a2 + b2 + d * d * a * b / n
        if (a3 := one[M3]) is not None and (b3 := other[M3]) is not None:
            e = d / n
            out[2] = a3 + b3 + d * e * e * a * b * (a - b) + 3 * e * (a * b2 - b * a2)
            if (a4 := one[M4]) is not None and (b4 := other[M4]) is not None:
                whole = d * e * e * e * a * b * (a * a - a * b + b * b)
                half = 6 * e * e * (a * a * b2 + b * b * a2)
                out[3] = a4 + b4 + whole + half + 4 * e * (a * b3 - b * a3)
    return out


def centred(row: Row, shift: float, powers: Sequence[float]) -> None:
    """Fill in mean and moments of a row.

    Args:
        row: has the counts.
        shift: near the mean.
        powers: sums of the first and of higher powers of the differences to ``shift``.
    """
    n, (first, *rest) = _finite(row), powers
    e = first / n if n else 0.0
    row[MEAN] = shift + e
    if rest:
        row[M2] = max(rest[0] - n * e * e, 0.0)
    if len(rest) > 1:
        second, third, fourth = rest
        row[M3] = third - 3 * e * second + 2 * n * e * e * e
        row[M4] = max(fourth - 4 * e * third + 6 * e * e * second - 3 * n * e * e * e * e, 0.0)


def with_moments(row: Row) -> Row:
    """The row of an older trace, with those moments that its raw sums determine."""
    total, squares, n = row[SUM], row[SQUARES], _finite(row)
    if row[M2] is not None or total is None or squares is None or not n:
        return row
    powers = [0.0, squares]
    if (cubes := row[CUBES]) is not None and (fourths := row[FOURTHS]) is not None:
        powers += [cubes, fourths]
    found = list(row)
    powers[0] = total
    centred(found, 0.0, powers)
    for index, ratio in _MOST_RATIO.items():
        spread = found[M2] or 0.0
        if spread * ratio * ratio < squares:
            found[index] = None
    return found


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
        if index not in (MINIMUM, MAXIMUM, MEAN) and number is not None:
            exact = isinstance(number, int) and number % replicas == 0
            out[index] = number // replicas if exact else number / replicas
    return out


def scaled(row: Numbers, factor: float) -> Row:
    """The sums of the elements times ``factor``, which is positive."""
    return [
        number if number is None or index not in _POWERS else number * factor ** _POWERS[index]
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
    second, count = row[M2], _finite(row)
    return None if second is None or not count else second / count


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
    second, third = row[M2], row[M3]
    if not second or third is None:
        return None
    return math.sqrt(_finite(row) / second) * (third / second)


def _kurtosis(row: Numbers) -> float | None:
    second, fourth = row[M2], row[M4]
    if not second or fourth is None:
        return None
    return _finite(row) * (fourth / second / second)


def _needing(*columns: str) -> frozenset[str]:
    return frozenset(columns)


STATISTICS = {
    "mean": Statistic(_needing("sum"), _mean_of(SUM), "mean"),
    "rms": Statistic(
        _needing("squares"), lambda r: _root(_mean_of(SQUARES)(r)), "root mean square"
    ),
    "norm": Statistic(_needing("squares"), _norm, "L2 norm of all elements"),
    "std": Statistic(
        _needing("sum", "m2"), lambda r: _root(_variance(r)), "standard deviation, divisor n"
    ),
    "var": Statistic(_needing("sum", "m2"), _variance, "variance, divisor n"),
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
    "skewness": Statistic(
        _needing("sum", "m2", "m3"), _skewness, "skewness; not defined for equal elements"
    ),
    "kurtosis": Statistic(
        _needing("sum", "m2", "m3", "m4"),
        _kurtosis,
        "kurtosis; 3 for a normal distribution, not defined for equal elements",
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
            fix=f"{suggested(name, STATISTICS)}There are {', '.join(STATISTICS)}",
        )
    return found


def is_taken(name: str, row: Numbers) -> bool:
    """Whether the sums that a statistic needs were taken."""
    needed = STATISTICS[name].columns
    return all(row[COLUMNS.index(column)] is not None for column in needed)


# Sums of one part of a tensor that several ranks hold together; "shard/2": two ranks hold it.
SHARDED = "shard"
# Of these tensors every data parallel rank has the same; only parts of them are added.
REPLICATED = frozenset(
    {"parameter", "gradient", "gradient_before_clip", "update", "optimizer_state"}
)


class Combine:
    """How values of one metric combine. A mean is stored as the weighted sum."""

    MEAN = "mean"
    SUM = "sum"
    MAX = "max"
    MIN = "min"
    LAST = "last"
    ALL = frozenset({MEAN, SUM, MAX, MIN, LAST})

    @staticmethod
    def add(how: str, one: float, other: float) -> float:
        """Two stored values as one."""
        if how in (Combine.MEAN, Combine.SUM):
            return one + other
        if how == Combine.MAX:
            return max(one, other)
        return min(one, other) if how == Combine.MIN else other


def subject_of(name: str) -> str:
    """The kind of tensors that a metric is of: ``activation`` of ``activation/Net.fc1``."""
    return name.partition("/")[0]


def sharded(copies: int) -> str:
    """How sums combine of one part of a tensor, of which so many ranks hold a copy."""
    return SHARDED if copies == 1 else f"{SHARDED}/{copies}"


def copies_of(name: str, combine: str, processes: int) -> int:
    """How often the elements under this name are among the numbers of so many processes."""
    how, _, copies = combine.partition("/")
    if how == SHARDED:
        return int(copies) if copies.isdecimal() else 1
    return processes if subject_of(name).removesuffix("_difference") in REPLICATED else 1
