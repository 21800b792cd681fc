"""TC406: ranks that use different learning rates."""

from __future__ import annotations

from tests.checking import fires, quiet
from tests.golden import Golden, mentions
from tests.ranks import RankBuilder, two_ranks
from tests.rules.window import schedule
from traincheck.schema.findings import Verdict


def scheduled(rank: RankBuilder, *, on: tuple[int, ...] = (0,), apart: bool = True) -> None:
    rank.steps(1)
    if rank.rank in on:
        schedule(rank, lr=1e-4)
    if apart:
        rank.go_apart()
    rank.steps(2)


BROKEN = two_ranks(scheduled)


def test_fires_where_one_rank_steps_the_scheduler(golden: Golden) -> None:
    finding = fires("TC406", BROKEN)
    assert (finding.first_step, finding.rank) == (1, 1)
    golden(finding)
    assert mentions(finding, 0, 0.0001, 1, 0.001)


def test_the_rule_about_replicas_leaves_it_to_this_one() -> None:
    assert quiet("TC401", BROKEN) is Verdict.HELD


def test_quiet_where_all_ranks_step_it() -> None:
    assert quiet("TC406", two_ranks(lambda r: scheduled(r, on=(0, 1)))) is Verdict.HELD


def test_quiet_where_replicas_stay_equal_or_are_none() -> None:
    assert quiet("TC406", two_ranks(lambda r: scheduled(r, apart=False))) is Verdict.HELD
    assert quiet("TC406", two_ranks(scheduled, wrap=False)) is Verdict.NOT_TRIGGERED
