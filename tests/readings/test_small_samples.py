"""Which shares and norms chance may explain."""

from __future__ import annotations

import pytest

from traincheck.readings.small_samples import (
    FEWEST_ELEMENTS,
    FEWEST_UNITS,
    has_few,
    may_be_chance,
    units_of,
)


@pytest.mark.parametrize(
    ("off", "units", "expected"),
    [
        (3, 4, True),
        (4, 4, True),
        (9, 9, True),
        (10, 10, False),
        (12, 16, True),
        (15, 16, False),
        (22, 32, True),
        (26, 32, False),
        (45, 64, False),
        (32, 64, True),
        (700, 1000, False),
        (0, 0, True),
    ],
)
def test_even_odds_explain_a_share_of_few_units(off: int, units: int, expected: bool) -> None:
    assert may_be_chance(off / units if units else 0.0, units) is expected


def test_the_fewest_units_are_those_of_which_all_tell_something() -> None:
    assert not may_be_chance(1.0, FEWEST_UNITS)
    assert may_be_chance(1.0, FEWEST_UNITS - 1)


def test_units_are_channels_of_images_or_the_last_dim() -> None:
    assert [units_of(s) for s in ((), (5,), (2, 3), (2, 5, 7), (2, 3, 8, 9))] == [0, 0, 3, 7, 3]


def test_a_norm_takes_some_elements() -> None:
    assert has_few((3, 5))
    assert not has_few((4, 4))
    assert FEWEST_ELEMENTS == 16
