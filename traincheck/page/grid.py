"""The numbers of a map: one for each layer and column of steps, for each rank."""

from __future__ import annotations

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
