"""TC920: images whose channels come last."""

from __future__ import annotations

import pytest

from tests.checking import fires, quiet
from tests.golden import mentions
from tests.rules.batches import leaf, run_on
from traincheck.schema.findings import Verdict


def batches(shape: tuple[int, ...], low: float, high: float, dtype: str = "float32", n: int = 3):
    """Steps on batches of one tensor with these extremes."""
    tensor = leaf(shape=shape, dtype=dtype, stats={"min": low, "max": high, "nonfinite": 0})
    return run_on([{"leaves": {"batch[0]": tensor}}] * n)


BROKEN = batches((8, 64, 64, 3), 0, 1)


def test_fires_in_the_third_batch() -> None:
    finding = fires("TC920", BROKEN)
    assert mentions(finding, "loader0 batch[0]", "[8, 64, 64, 3]")


def test_fires_on_large_images_that_are_no_squares() -> None:
    assert mentions(fires("TC920", batches((8, 480, 640, 3), 0, 1)), "[8, 480, 640, 3]")


@pytest.mark.parametrize(
    "events",
    [
        batches((8, 3, 64, 64), 0, 1),
        batches((8, 64, 4, 4), 0, 1),
        batches((8, 64, 64, 3), 0, 255, "uint8"),
        batches((8, 64, 48, 3), 0, 1),
        batches((8, 256, 1000, 1), 0, 1),
        batches((8, 64, 64, 3), 0, 1, n=2),
    ],
)
def test_quiet_on_others(events: list) -> None:
    assert quiet("TC920", events) in (Verdict.HELD, Verdict.NOT_TRIGGERED)
