"""Numbers of a page: the cells of a map, and curves and maps as short text."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from traincheck.page.axis import Axis

Numbers = NDArray[np.float32]  # layers x columns; NaN where there is none

_MOST_LAYERS = 2000
_MOST_RANKS = 16  # that are kept apart
_ROOM = 64  # rows to begin with


class Grid:
    """The highest number of each layer, rank and column.

    An infinity stands for all numbers that are not finite.

    Attributes:
        rows: layer -> its row.
        left_out: layers beyond the limit.
    """

    def __init__(self, axis: Axis) -> None:
        self.rows: dict[str, int] = {}
        self.left_out: set[str] = set()
        self._axis = axis
        self._last: tuple[tuple[str, ...], list[int | None]] = (), []  # layers, and their rows
        self._ranks: dict[int, int] = {}  # rank -> its index; ranks beyond the limit share one
        self._numbers = np.full((1, _ROOM, axis.most), np.nan, np.float32)
        axis.carry(self)

    def add(self, rank: int, step: int, numbers: Mapping[str, float]) -> None:
        """Enter the numbers of layers in one step of one rank."""
        column = self._axis.column(step)
        layers, found = self._last
        if layers != (given := tuple(numbers)):
            found = [self._row(layer) for layer in given]
            self._last = given, found
        values = np.fromiter(numbers.values(), np.float32, len(numbers))
        values[~np.isfinite(values)] = np.inf
        if self.left_out:
            values = values[[row is not None for row in found]]
        rows = [row for row in found if row is not None]
        kept = self._of(rank)
        kept[rows, column] = np.fmax(kept[rows, column], values)

    def fold(self) -> None:
        """Make one column of two."""
        half = np.fmax(self._numbers[..., 0::2], self._numbers[..., 1::2])
        self._numbers = np.concatenate([half, np.full_like(half, np.nan)], axis=2)

    def highest(self, layers: Sequence[str]) -> Numbers:
        """The highest number of any rank."""
        made: Numbers = np.fmax.reduce(self._chosen(layers))
        return made

    def spread(self, layers: Sequence[str]) -> Numbers | None:
        """How far the ranks are apart, relative to the highest; None for a single rank."""
        ranks = min(len(self._ranks), _MOST_RANKS)
        if ranks == 1:
            return None
        numbers = self._chosen(layers)[:ranks]
        return apart(np.fmax.reduce(numbers), np.fmin.reduce(numbers))

    def _row(self, layer: str) -> int | None:
        row = self.rows.get(layer)
        if row is None:
            if len(self.rows) >= _MOST_LAYERS:
                self.left_out.add(layer)
                return None
            row = self.rows[layer] = len(self.rows)
        return row

    def _of(self, rank: int) -> Numbers:
        """The numbers of a rank, with room for all layers and an empty row behind them."""
        index = min(self._ranks.setdefault(rank, len(self._ranks)), _MOST_RANKS)
        ranks, room, columns = self._numbers.shape
        while room <= len(self.rows):
            room *= 2
        if index >= ranks or room > self._numbers.shape[1]:
            made = np.full((max(ranks, index + 1), room, columns), np.nan, np.float32)
            made[:ranks, : self._numbers.shape[1]] = self._numbers
            self._numbers = made
        kept: Numbers = self._numbers[index]
        return kept

    def _chosen(self, layers: Sequence[str]) -> Numbers:
        """Ranks x layers x columns; an unknown layer has no numbers."""
        rows = [self.rows.get(layer, len(self.rows)) for layer in layers]
        return self._numbers[:, rows, : self._axis.columns]


def apart(one: Numbers, other: Numbers) -> Numbers:
    """The distance of two numbers, relative to the larger one; infinite if one is not finite."""
    larger, smaller = np.fmax(one, other), np.fmin(one, other)
    with np.errstate(divide="ignore", invalid="ignore"):
        distance = (larger - smaller) / larger
    distance = np.where(larger == 0, 0, distance)
    distance = np.where(np.isinf(larger), np.where(np.isinf(smaller), 0, np.inf), distance)
    absent = np.isnan(one) | np.isnan(other)
    made: Numbers = np.where(absent, np.nan, distance).astype(np.float32)
    return made


# Cells without a number, with 0 or less, and with one that is not finite.
ABSENT, ZERO, BROKEN = 0, 254, 255
_LEVELS = 252  # from the lowest to the highest number, on a logarithmic scale


def curve(numbers: Sequence[float]) -> str:
    """Base64 of little-endian float32."""
    return base64.b64encode(np.asarray(numbers, "<f4").tobytes()).decode()


def cells(numbers: Numbers) -> tuple[str, float, float]:
    """Base64 of one byte a cell, row by row, and the lowest and the highest number above 0.

    Args:
        numbers: rows x columns. NaN is no number; an infinity stands for what is not finite.
    """
    regular = (numbers > 0) & np.isfinite(numbers)
    found = numbers[regular].astype(np.float64)
    low, high = (float(found.min()), float(found.max())) if found.size else (1.0, 1.0)
    start, span = np.log(low), np.log(high) - np.log(low)
    scale = (_LEVELS - 1) / span if span else 0.0
    made = np.full(numbers.shape, ZERO, np.uint8)
    made[regular] = 1 + np.rint((np.log(found) - start) * scale).astype(np.uint8)
    made[np.isinf(numbers)] = BROKEN
    made[np.isnan(numbers)] = ABSENT
    return base64.b64encode(made.tobytes()).decode(), low, high


def folded(numbers: Numbers, width: int) -> Numbers:
    """The highest numbers in columns that are `width` times as wide."""
    rows, columns = numbers.shape
    missing = np.full((rows, -columns % width), np.nan, np.float32)
    parts = np.concatenate([numbers, missing], axis=1).reshape(rows, -1, width)
    made: Numbers = np.fmax.reduce(parts, axis=2)
    return made
