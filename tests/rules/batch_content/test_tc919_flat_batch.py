"""TC919: images of one value."""

from __future__ import annotations

import pytest

from tests.checking import fires, quiet
from tests.golden import Golden, mentions
from tests.rules.batches import leaf, run_on
from traincheck.schema.findings import Verdict


def batches(shape: tuple[int, ...], low: float, high: float, dtype: str = "float32", n: int = 3):
    """Steps on batches of one tensor with these extremes."""
    tensor = leaf(shape=shape, dtype=dtype, stats={"min": low, "max": high, "nonfinite": 0})
    return run_on([{"leaves": {"batch[0]": tensor}}] * n)


BROKEN = batches((8, 3, 32, 32), 0, 0)


def test_fires_in_the_third_batch(golden: Golden) -> None:
    finding = fires("TC919", BROKEN)
    assert mentions(finding, "loader0 batch[0]")
    golden(finding)
    assert mentions(finding, 0)


@pytest.mark.parametrize(
    "events",
    [
        batches((8, 3, 32, 32), 0, 1),
        batches((8, 128), 1, 1),
        batches((8, 12, 64, 64), 1, 1),
        batches((8, 3, 32, 32), 0, 0, n=2),
    ],
)
def test_quiet_on_others(events: list) -> None:
    assert quiet("TC919", events) in (Verdict.HELD, Verdict.NOT_TRIGGERED)
