"""Sketches as readers use them: sizes of differences, sums of parts, texts."""

from __future__ import annotations

import math

import pytest

from traincheck.schema.comparison.sketch import (
    SIZE,
    decode,
    distance,
    encode,
    norm,
    relative_difference,
    total,
)

ONE = tuple(float(i) for i in range(SIZE))


def test_the_text_holds_the_numbers() -> None:
    assert decode(encode(ONE)) == ONE
    assert len(encode(ONE)) == 684  # base64 of 512 bytes


@pytest.mark.parametrize("text", ["", "AAAA", "no base64!", encode(ONE)[:-4]])
def test_other_texts_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="not a sketch"):
        decode(text)


def test_parts_add_up() -> None:
    assert total([ONE, ONE]) == tuple(2 * x for x in ONE)
    assert total([]) == (0.0,) * SIZE


def test_differences_are_relative_to_the_second() -> None:
    other = (*ONE[:-1], ONE[-1] + 1)
    assert distance(ONE, other) == 1
    assert relative_difference(ONE, other) == 1 / norm(other)
    assert relative_difference(ONE, other, size=2.0) == 0.5
    assert relative_difference(ONE, ONE) == 0
    assert relative_difference(ONE, total([])) == math.inf
    assert relative_difference(total([]), total([])) == 0


def test_what_is_not_finite_is_no_zero() -> None:
    broken = (math.nan, *ONE[1:])
    assert math.isnan(relative_difference(broken, ONE))
    assert math.isnan(relative_difference(ONE, decode(encode(broken))))
