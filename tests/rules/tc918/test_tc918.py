"""TC918: images in 0..255."""

from __future__ import annotations

import pytest

from tests.checking import fires, quiet
from tests.rules.batches import leaf, run_on
from traincheck.schema.findings import Verdict


def batches(shape: tuple[int, ...], low: float, high: float, dtype: str = "float32", n: int = 3):
    """Steps on batches of one tensor with these extremes."""
    tensor = leaf(shape=shape, dtype=dtype, stats={"min": low, "max": high, "nonfinite": 0})
    return run_on([{"leaves": {"batch[0]": tensor}}] * n)


BROKEN = batches((8, 3, 32, 32), 0, 255)


def test_fires_in_the_third_batch() -> None:
    finding = fires("TC918", BROKEN)
    assert "loader0 batch[0]" in finding.observed
    assert "values from 0 to 255" in finding.observed


def test_fires_when_everything_is_far_below_zero() -> None:
    finding = fires("TC918", batches((8, 3, 32, 32), -200, -199))
    assert "values from -200 to -199" in finding.observed


@pytest.mark.parametrize(
    "events",
    [
        batches((8, 1, 80, 80), -80, 0),  # decibels
        batches((8, 1, 64, 64), -1000, 400),  # Hounsfield units
        batches((8, 3, 32, 32), 0, 1),
        batches((8, 3, 32, 32), -2, 60),
        batches((8, 60), 0, 60),
        batches((8, 1), 0, 255),
        batches((8, 3, 32, 32), 0, 255, "uint8"),
        batches((8, 64, 4, 4), 0, 255),
        batches((8, 3, 32, 32), 0, 255, n=2),
    ],
)
def test_quiet_on_others(events: list) -> None:
    assert quiet("TC918", events) in (Verdict.HELD, Verdict.NOT_TRIGGERED)
