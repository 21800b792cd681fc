"""The effect of a view on the dims of a tensor, from their sizes alone."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import prod
from operator import mul

_TEXTS, _MAPS = 3, 4  # dims of (batch, time, features), and of images with a number for each class


def is_for_exchange(old: Sequence[int], new: Sequence[int]) -> bool:
    """Whether a view may be used in place of a transpose."""
    return bool(torn(old, new)) or cuts_heads(old, new) or loses_classes(old, new)


def cuts_heads(old: Sequence[int], new: Sequence[int]) -> bool:
    """Whether ``(batch, time, features)`` is viewed as ``(batch, heads, time, size)``.

    Each head then gets all features of a part of the time. False if heads, time or size are equal:
    the dims may be in another order.
    """
    if len(old) != _TEXTS or len(new) != _TEXTS + 1:
        return False
    (batch, time, features), (first, heads, second, size) = old, new
    if (first, second, heads * size) != (batch, time, features):
        return False
    return min(heads, time, size) > 1 and time not in (heads, size)


def loses_classes(old: Sequence[int], new: Sequence[int]) -> bool:
    """Whether ``(batch, classes, *places)`` is viewed as ``(batch x places, classes)``.

    Each row then has neighboring places, nearly all of one class. With one dim of places, which may
    be several times the classes, the view may be intended.
    """
    if len(old) < _TEXTS or len(new) != len(("rows", "classes")) or new[1] != old[1]:
        return False
    classes, places = old[1], old[2:]
    if classes <= 1 or prod(places) <= 1 or prod(old) != prod(new) or places[-1] == classes:
        return False
    return len(old) >= _MAPS or places[-1] % classes != 0


def torn(old: Sequence[int], new: Sequence[int]) -> list[int]:
    """Sizes of dims that a view tears apart, although its result has dims of the same sizes.

    A view may merge neighboring dims and split them. A view with the sizes in another order,
    instead of a transpose, gives dims that mix elements of several slices: ``(32, 10, 8)`` viewed
    as ``(10, 32, 8)`` tears those of 32 and 10.

    If sizes are multiples of each other, the same view may be intended: ``(4, 8, 16)`` as ``(8, 4,
    16)`` cuts sequences of 8 in halves. Then only a dim that becomes the first is reported.

    Args:
        old: sizes of the dims before.
        new: sizes after.

    Returns:
        Sizes that occur once in ``old``, are over 1, and are among ``new``.
    """
    old, new = [n for n in old if n > 1], [n for n in new if n > 1]
    if prod(old) != prod(new):  # other elements: a view as another dtype
        return []
    ends = [1, *accumulate(reversed(new), mul)]  # elements of each dim and the later ones
    found = []
    for place, size in enumerate(old):
        if old.count(size) > 1 or size not in new:
            continue
        low = prod(old[place + 1 :])
        becomes_first = place > 0 and new[0] == size and len(new) <= len(old)
        if becomes_first or _is_torn(low, low * size, ends):
            found.append(size)
    return found


def _is_torn(low: int, high: int, ends: Sequence[int]) -> bool:
    """Whether a view neither keeps a dim intact nor cuts it evenly.

    Args:
        low: elements in one slice of the dim.
        high: elements in all its slices.
        ends: where the dims of the view end, counted in elements from the last on.
    """
    within = [end for end in ends if low < end < high]
    if within:
        return any(more % less for less, more in pairwise([low, *within, high]))
    below = max(end for end in ends if end <= low)
    above = min(end for end in ends if end >= high)
    return bool(low % below or above % high)
