"""Numbers by step in a bounded number of columns. No peak is lost: a column holds the largest."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from typing import Protocol

_MOST = 1024  # columns


class Folding(Protocol):
    """Numbers on an axis."""

    def fold(self) -> None:
        """Make one column of two."""


class Axis:
    """Steps in columns of equal width. The width doubles when a step lies beyond the last column.

    Attributes:
        width: steps of one column, a power of two.
        last: the largest step so far; -1 before the first.
        most: the largest number of columns.
    """

    def __init__(self, most: int = _MOST) -> None:
        self.width = 1
        self.last = -1
        self.most = most
        self._on: list[Folding] = []

    def row(self) -> Row:
        """A new row of numbers on this axis."""
        made = Row(self)
        self.carry(made)
        return made

    def carry(self, numbers: Folding) -> None:
        """Fold these numbers, too, when the width doubles."""
        self._on.append(numbers)

    def column(self, step: int) -> int:
        """The column of a step; makes room for it."""
        if step > self.last:
            self.last = step
            while step // self.width >= self.most:
                self.width *= 2
                for numbers in self._on:
                    numbers.fold()
        return step // self.width

    @property
    def columns(self) -> int:
        """Number of columns up to the last step."""
        return self.last // self.width + 1


class Row:
    """The numbers of one curve: the lowest and the highest in each column; NaN where there is none.

    An infinity stands for all numbers that are not finite.
    """

    def __init__(self, axis: Axis) -> None:
        self._axis = axis
        self.low = array("f")
        self.high = array("f")

    def add(self, step: int, value: float) -> None:
        """Enter the number of a step."""
        column = self._axis.column(step)
        missing = column + 1 - len(self.high)
        if missing > 0:
            self.low.extend([math.nan] * missing)
            self.high.extend([math.nan] * missing)
        number = value if math.isfinite(value) else math.inf
        low = self.low[column]
        if math.isnan(low):
            self.low[column] = self.high[column] = number
        else:
            self.low[column] = min(low, number)
            self.high[column] = max(self.high[column], number)

    def fold(self) -> None:
        """Make one column of two."""
        self.low = _folded(self.low, min)
        self.high = _folded(self.high, max)


def _folded(numbers: array[float], of: Callable[[Sequence[float]], float]) -> array[float]:
    made = array("f")
    for index in range(0, len(numbers), 2):
        pair = [n for n in numbers[index : index + 2] if not math.isnan(n)]
        made.append(of(pair) if pair else math.nan)
    return made
