"""TC916: many unknown tokens."""

from __future__ import annotations

import pytest

from tests.checking import fires, quiet
from tests.golden import Golden, mentions
from tests.rules.batches import leaf, run_on
from traincheck.rules.batch_content.tokens import UnknownTokens
from traincheck.schema.findings import Verdict


def unknown(share: float | None, n: int = 3) -> list:
    """Steps on batches of tokens of which so many are unknown."""
    ids = leaf(shape=(8, 64), dtype="int64", stats={"min": 0, "max": 99, "nonfinite": 0})
    tokens = {} if share is None else {"tokens": {"unknown": share}}
    return run_on([{"leaves": {"batch.input_ids": ids}, **tokens}] * n)


BROKEN = unknown(0.3)


def test_fires_in_the_third_batch(golden: Golden) -> None:
    assert mentions(golden(fires("TC916", BROKEN)), "30%")


def test_the_share_is_an_option() -> None:
    monitor = UnknownTokens(share=0.5).monitor()
    assert not [found for event in BROKEN for found in monitor.observe(event)]


@pytest.mark.parametrize("events", [unknown(0.02), unknown(None), unknown(0.3, n=2)])
def test_quiet_on_others(events: list) -> None:
    assert quiet("TC916", events) in (Verdict.HELD, Verdict.NOT_TRIGGERED)
