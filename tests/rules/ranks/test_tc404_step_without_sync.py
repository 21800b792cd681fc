"""TC404: a step on gradients that no_sync() kept local."""

from __future__ import annotations

import pytest

from tests.checking import fires, quiet
from tests.golden import mentions
from tests.ranks import RankBuilder, two_ranks
from traincheck.schema.findings import Verdict


def accumulating(rank: RankBuilder, flags: tuple[bool, ...], *, apart: bool = True) -> None:
    rank.steps(1)
    if apart:
        rank.go_apart()
    for _ in range(2):
        rank.begin_step().zero_grad()
        for flag in flags:
            rank.sync = flag
            rank.forward().backward()
        rank.optimizer_step()


BROKEN = two_ranks(lambda rank: accumulating(rank, (True, False)))


@pytest.mark.parametrize("flags", [(True, False), (False, False, False)])
def test_fires_where_the_last_micro_batch_is_not_synchronized(flags: tuple[bool, ...]) -> None:
    finding = fires("TC404", two_ranks(lambda rank: accumulating(rank, flags)))
    assert finding.first_step == 1
    assert finding.subject.module == "Net"
    assert mentions(finding, "train.py:88")


def test_quiet_where_the_last_micro_batch_is_synchronized() -> None:
    events = two_ranks(lambda rank: accumulating(rank, (False, False, True)))
    assert quiet("TC404", events) is Verdict.HELD


def test_quiet_where_ranks_stay_equal() -> None:
    events = two_ranks(lambda rank: accumulating(rank, (True, False), apart=False))
    assert quiet("TC404", events) is Verdict.HELD
