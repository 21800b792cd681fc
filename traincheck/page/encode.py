"""Numbers of a page as short text: curves in float32, maps in one byte a cell."""

from __future__ import annotations

import base64
import math
import sys
from array import array
from collections.abc import Sequence

from traincheck.page.axis import Row

ABSENT, ZERO, BROKEN = (
    0,
    254,
    255,
)  # cells without a number, with 0, and with one that is not finite
_LEVELS = 252  # from the lowest to the highest number, on a logarithmic scale


def curve(numbers: array[float]) -> str:
    """Base64 of little-endian float32."""
    little = numbers
    if sys.byteorder == "big":
        little = array("f", numbers)
        little.byteswap()
    return base64.b64encode(little.tobytes()).decode()


def cells(rows: Sequence[Sequence[float]]) -> tuple[str, float, float]:
    """Base64 of one byte a cell, row by row, and the lowest and the highest number above 0.

    Args:
        rows: of equal length. NaN is no number; an infinity stands for what is not finite.
    """
    found = [n for row in rows for n in row if 0 < n < math.inf]
    low, high = (min(found), max(found)) if found else (1.0, 1.0)
    start, span = math.log(low), math.log(high) - math.log(low)
    scale = (_LEVELS - 1) / span if span else 0.0
    out = bytearray()
    for row in rows:
        out.extend(_cell(n, start, scale) for n in row)
    return base64.b64encode(bytes(out)).decode(), low, high


def _cell(number: float, start: float, scale: float) -> int:
    if math.isnan(number):
        return ABSENT
    if math.isinf(number):
        return BROKEN
    return ZERO if number <= 0 else 1 + round((math.log(number) - start) * scale)


def folded(row: Row, columns: int, width: int) -> list[float]:
    """The highest numbers of a row in columns that are `width` times as wide."""
    numbers = row.high
    made: list[float] = []
    for index in range(columns):
        part = [n for n in numbers[index * width : (index + 1) * width] if not math.isnan(n)]
        made.append(max(part) if part else math.nan)
    return made
