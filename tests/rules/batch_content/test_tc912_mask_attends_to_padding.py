"""TC912: a mask that attends to padding."""

from __future__ import annotations

import pytest

from tests.checking import fires, quiet
from tests.golden import Golden, mentions
from tests.rules.batches import leaf, run_on
from traincheck.schema.findings import Verdict


def masked(rows: int | None, n: int = 3) -> list:
    """Steps on batches of tokens, in so many rows of which padding is attended to."""
    ids = leaf(shape=(8, 64), dtype="int64", stats={"min": 0, "max": 99, "nonfinite": 0})
    tokens = {"padding": 0.0} if rows is None else {"padding": 0.0, "attended_padding": rows}
    return run_on([{"leaves": {"batch.input_ids": ids}, "tokens": tokens}] * n)


BROKEN = masked(6)


def test_fires_in_the_third_batch(golden: Golden) -> None:
    assert mentions(golden(fires("TC912", BROKEN)), 6, 8)


@pytest.mark.parametrize("events", [masked(0), masked(None), masked(6, n=2)])
def test_quiet_on_others(events: list) -> None:
    assert quiet("TC912", events) in (Verdict.HELD, Verdict.NOT_TRIGGERED)
