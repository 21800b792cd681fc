"""TC921: negative ids and labels."""

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


BROKEN = batches((8,), -7, 9, "int64")


def test_fires_in_the_third_batch(golden: Golden) -> None:
    finding = fires("TC921", BROKEN)
    assert mentions(finding, "loader0 batch[0]")
    golden(finding)
    assert mentions(finding, -7)


@pytest.mark.parametrize(
    "events",
    [
        batches((8,), 0, 9, "int64"),
        batches((8, 64), -100, 9, "int64"),
        batches((8,), -1, 9, "int32"),
        batches((8,), -7, 9, "float32"),
        batches((8,), -7, 9, "int64", n=2),
    ],
)
def test_quiet_on_others(events: list) -> None:
    assert quiet("TC921", events) in (Verdict.HELD, Verdict.NOT_TRIGGERED)
