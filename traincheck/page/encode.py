"""Numbers of a page as short text: curves in float32, maps in one byte a cell."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import numpy as np

from traincheck.page.grid import Numbers

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
