"""TC913: batches that are mostly padding."""

from __future__ import annotations

import pytest

from tests.checking import fires, quiet
from tests.golden import Golden, mentions
from tests.rules.batches import leaf, run_on
from traincheck.schema.findings import Verdict


def padded(share: float | None, n: int = 3) -> list:
    """Steps on batches of tokens of which so many are padding."""
    ids = leaf(shape=(8, 64), dtype="int64", stats={"min": 0, "max": 99, "nonfinite": 0})
    tokens = {} if share is None else {"tokens": {"padding": share}}
    return run_on([{"leaves": {"batch.input_ids": ids}, **tokens}] * n)


BROKEN = padded(0.7)


def test_fires_in_the_third_batch(golden: Golden) -> None:
    assert mentions(golden(fires("TC913", BROKEN)), "70%")


@pytest.mark.parametrize("events", [padded(0.4), padded(None), padded(0.7, n=2)])
def test_quiet_on_others(events: list) -> None:
    assert quiet("TC913", events) in (Verdict.HELD, Verdict.NOT_TRIGGERED)
