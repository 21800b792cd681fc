"""Which views tear dims apart, against what they do to the rows of a tensor."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from traincheck.schema.shapes import cuts_heads, is_for_exchange, loses_classes, torn

Shape = Sequence[int]


@pytest.mark.parametrize(
    ("old", "new", "sizes"),
    [
        ((32, 10, 8), (10, 32, 8), [32, 10]),  # in place of a transposition
        ((32, 64, 8), (64, 32, 8), [64]),  # 32 may be the length of a half
        ((64, 10), (10, 64), [64, 10]),
        ((2, 32, 16), (32, 32), [32]),  # last states of a layer that reads both ways
        ((2, 32, 7), (32, 14), [32]),
        ((10, 32, 16), (32, 160), [32]),
        ((32, 3, 28, 28), (32, 784, 3), [3]),  # images as sequences of pixels
        ((1, 32, 10, 8), (10, 1, 32, 8), [32, 10]),  # dims of one element do not matter
    ],
)
def test_torn(old: Shape, new: Shape, sizes: list[int]) -> None:
    assert torn(old, new) == sizes


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ((32, 10, 16), (320, 16)),  # merged
        ((32, 10, 16), (32, 160)),
        ((10, 32, 16), (320, 16)),
        ((32, 10, 64), (32, 10, 8, 8)),  # split in heads
        ((8, 10, 64), (80, 8, 8)),  # merged, and split in as many heads as there are samples
        ((10, 8, 32), (10, 32, 8)),  # heads of attention: (time, batch x 4 heads, features)
        ((32, 10, 16), (160, 32)),  # two steps in one row
        ((64, 16, 4, 4), (32, 32, 4, 4)),  # ghost batches
        ((1, 32, 16), (32, 16)),
        ((16, 64), (4, 4, 64)),
        ((32, 32, 8), (32, 8, 32)),  # nobody knows which of them is meant
        ((32, 5), (32, 20)),  # as another dtype
        ((), ()),
        ((0, 3), (3, 0)),
    ],
)
def test_kept(old: Shape, new: Shape) -> None:
    assert torn(old, new) == []


@pytest.mark.parametrize(
    ("old", "new", "is_cut"),
    [
        ((64, 16, 32), (64, 4, 16, 8), True),
        ((64, 16, 32), (64, 16, 4, 8), False),  # to be exchanged next
        ((64, 4, 32), (64, 4, 4, 8), False),  # as many heads as positions
        ((64, 8, 32), (64, 4, 8, 8), False),
        ((64, 16, 32), (64, 1, 16, 32), False),
        ((64, 1, 32), (64, 4, 1, 8), False),  # one token
        ((64, 16, 32), (64, 32, 16), False),
    ],
)
def test_heads_cut_in_time(old: Shape, new: Shape, is_cut: bool) -> None:
    assert cuts_heads(old, new) is is_cut
    assert is_for_exchange(old, new) is (is_cut or bool(torn(old, new)))


@pytest.mark.parametrize(
    ("old", "new", "is_lost"),
    [
        ((16, 3, 16, 16), (4096, 3), True),
        ((16, 2, 16, 16), (4096, 2), True),
        ((16, 3, 10), (160, 3), True),
        ((16, 3, 12), (192, 3), False),  # may be four times three classes
        ((16, 16, 16, 3), (4096, 3), False),  # exchanged before
        ((16, 3, 16, 3), (768, 3), False),
        ((16, 3, 1, 1), (16, 3), False),
        ((16, 3), (16, 3), False),
        ((16, 10, 3), (160, 3), False),
        ((16, 1, 16, 16), (4096, 1), False),
    ],
)
def test_scores_of_classes_torn(old: Shape, new: Shape, is_lost: bool) -> None:
    assert loses_classes(old, new) is is_lost
    assert is_for_exchange(old, new) is (is_lost or bool(torn(old, new)))
