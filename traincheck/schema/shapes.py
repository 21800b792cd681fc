"""What a view of a tensor does to its dims, from their sizes alone."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import prod
from operator import mul

_TEXTS, _MAPS = 3, 4  # dims of (batch, time, features), and of images with a number for each class


def is_for_exchange(old: Sequence[int], new: Sequence[int]) -> bool:
    """Whether a view is of the kind that stands in place of an exchange of dims."""
    return bool(torn(old, new)) or cuts_heads(old, new) or loses_classes(old, new)


def cuts_heads(old: Sequence[int], new: Sequence[int]) -> bool:
    """Whether ``(batch, time, features)`` is viewed as ``(batch, heads, time, size)``.

    Each head is then given all features of a part of the time. Not told where heads, time or size
    are alike: there the dims may be in another order.
    """
    if len(old) != _TEXTS or len(new) != _TEXTS + 1:
        return False
    (batch, time, features), (first, heads, second, size) = old, new
    if (first, second, heads * size) != (batch, time, features):
        return False
    return min(heads, time, size) > 1 and time not in (heads, size)


def loses_classes(old: Sequence[int], new: Sequence[int]) -> bool:
    """Whether ``(batch, classes, *places)`` is viewed as ``(batch x places, classes)``.

    Each row then holds neighbours in place, nearly all of one class. With one dim of places, which
    may be several times the classes, a row may be meant to hold what it holds.
    """
    if len(old) < _TEXTS or len(new) != len(("rows", "classes")) or new[1] != old[1]:
        return False
    classes, places = old[1], old[2:]
    if classes <= 1 or prod(places) <= 1 or prod(old) != prod(new) or places[-1] == classes:
        return False
    return len(old) >= _MAPS or places[-1] % classes != 0


def torn(old: Sequence[int], new: Sequence[int]) -> list[int]:
    """Sizes of dims that a view tears apart, though what it gives has dims of the same sizes.

    A view may merge dims with their neighbours and split them. Whoever asks for the sizes of the
    dims in another order, in place of a transposition, gets dims of these sizes that hold elements
    of several slices: ``(32, 10, 8)`` viewed as ``(10, 32, 8)`` tears those of 32 and 10.

    Where sizes are multiples of each other the same view may be meant: ``(4, 8, 16)`` as
    ``(8, 4, 16)`` cuts sequences of 8 in halves. Not told, but of a dim that becomes the first.

    Args:
        old: sizes of the dims before.
        new: sizes after.

    Returns:
        Sizes that occur once in ``old``, are over 1, and are among ``new``.
    """
    old, new = [n for n in old if n > 1], [n for n in new if n > 1]
    if prod(old) != prod(new):  # other elements: a view as another dtype
        return []
    ends = [1, *accumulate(reversed(new), mul)]  # how many elements each dim and those behind hold
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
    """Whether a view neither keeps a dim whole nor cuts it evenly.

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
