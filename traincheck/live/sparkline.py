"""Numbers as a line of blocks. The largest number of a block is shown, so no spike is lost."""

from __future__ import annotations

import math
from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII = "_.-=+*%@"
NOT_FINITE = "!"
_LOG_FROM = 100.0  # ratio of the largest to the smallest number from which the scale is logarithmic


def sparkline(numbers: Sequence[float], width: int, blocks: str = BLOCKS) -> str:
    """The numbers in at most ``width`` characters.

    Args:
        numbers: one a column; NaN is a gap, an infinity is shown as ``!``.
        width: characters.
        blocks: from the lowest to the highest.
    """
    folded = _folded(numbers, width)
    known = [number for number in folded if math.isfinite(number)]
    if not known:
        return "".join(_block(number, 0.0, 0.0, blocks) for number in folded)
    low, high = min(known), max(known)
    if low > 0 and high / low >= _LOG_FROM:
        folded = [math.log(n) if math.isfinite(n) else n for n in folded]
        low, high = math.log(low), math.log(high)
    return "".join(_block(number, low, high, blocks) for number in folded)


def _folded(numbers: Sequence[float], width: int) -> list[float]:
    """At most ``width`` numbers, the largest of neighbours; none is left out."""
    count = len(numbers)
    if count <= width:
        return list(numbers)
    made = []
    for index in range(width):
        part = numbers[index * count // width : (index + 1) * count // width]
        made.append(max((n for n in part if not math.isnan(n)), default=math.nan))
    return made


def _block(number: float, low: float, high: float, blocks: str) -> str:
    if math.isnan(number):
        return " "
    if math.isinf(number):
        return NOT_FINITE
    span = high / 2 - low / 2  # halves: the difference may be larger than any number
    if span <= 0:
        return blocks[0]
    return blocks[min(len(blocks) - 1, int((number / 2 - low / 2) / span * len(blocks)))]
