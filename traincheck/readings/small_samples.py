"""Shares and norms of few elements, which may be coincidence."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb, prod

# Before training, a unit whose inputs hardly differ (such as an average over an image) is on or off
# for the whole batch, with even odds. Three of four units are off in every third such layer. A
# share is evidence only if even odds give as much once in a thousand layers.
_CHANCE = 1e-3
_MOST_COUNTED = 64  # units: with more, the same number is as significant
FEWEST_UNITS = 10  # of fewer, not even all of them are evidence
# The root mean square of fewer elements, or the ratio of two such, is off by a third or more.
FEWEST_ELEMENTS = 16
_IMAGE = 4  # dims of a batch of images


def may_be_chance(share: float, units: int) -> bool:
    """Whether even odds may put this share of so many units on one side.

    Args:
        share: of the units, in [0, 1].
        units: their number.
    """
    total = min(units, _MOST_COUNTED)
    least = min(total, int(share * total + 0.5))
    ways = sum(comb(total, count) for count in range(least, total + 1))
    return ways > _CHANCE * (1 << total)


def units_of(shape: Sequence[int]) -> int:
    """Number of units in a batch of activations: channels of images and volumes, else last dim."""
    if len(shape) <= 1:
        return 0
    return shape[1] if len(shape) >= _IMAGE else shape[-1]


def has_few(shape: Sequence[int]) -> bool:
    """Whether a tensor has too few elements for its norm to be compared."""
    return prod(shape) < FEWEST_ELEMENTS
