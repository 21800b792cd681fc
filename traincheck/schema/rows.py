"""Rows of a batch: which of them are fingerprinted, and how their fingerprints are written.

A row is what all tensors of a batch hold at one place of their first dimension: one sample. Each of
these tensors has a text of `WIDTH` hex digits a row.
"""

from __future__ import annotations

MOST_ROWS = 32
WIDTH = 12  # 48 bits: of 100,000 rows, two are equal by chance in 1 of 50,000 runs
UNKNOWN = "0" * WIDTH  # the row is large, and nearly all that was read of it is one value
_PARTS = 4


def row_places(count: int) -> list[int]:
    """The places that are fingerprinted in a batch of ``count`` rows, in order.

    The beginnings of its four quarters: two views of a sample are mostly half or a quarter of a
    batch apart, or neighbours.
    """
    if count <= MOST_ROWS:
        return list(range(count))
    starts = [count * part // _PARTS for part in range(_PARTS)]
    return [start + place for start in starts for place in range(MOST_ROWS // _PARTS)]


def row_prints(text: str) -> list[str]:
    """The fingerprints in a text, one a row."""
    return [text[start : start + WIDTH] for start in range(0, len(text), WIDTH)]
