"""TC403: a model that is trained past its DDP wrapper."""

from __future__ import annotations

from tests.builders import MLP
from tests.checking import fires, quiet
from tests.golden import mentions
from tests.ranks import RankBuilder, two_ranks
from traincheck.schema.findings import Verdict


def bypassing(rank: RankBuilder, *, apart: bool = True, by_hand: bool = False) -> None:
    rank.steps(2)
    rank.wrapped = False
    if apart:
        rank.go_apart()
    for _ in range(2):
        rank.begin_step().zero_grad().forward().backward()
        if by_hand:
            rank.collective()
        rank.optimizer_step()


BROKEN = two_ranks(bypassing)


def test_fires_at_the_first_step_past_the_wrapper() -> None:
    finding = fires("TC403", BROKEN)
    assert finding.first_step == 2
    assert finding.variables == tuple(sorted(f"Net.{name}" for name in MLP))
    assert finding.subject.module == "Net"
    assert mentions(finding, "train.py:30")


def test_quiet_where_the_wrapper_is_called() -> None:
    assert quiet("TC403", two_ranks(lambda rank: rank.go_apart().steps(3))) is Verdict.HELD


def test_quiet_where_nothing_comes_of_it() -> None:
    assert quiet("TC403", two_ranks(lambda rank: bypassing(rank, apart=False))) is Verdict.HELD


def test_quiet_where_gradients_are_reduced_by_hand() -> None:
    assert quiet("TC403", two_ranks(lambda rank: bypassing(rank, by_hand=True))) is Verdict.HELD


def test_quiet_on_evaluation_through_the_module() -> None:
    def play(rank: RankBuilder) -> None:
        rank.steps(2)
        rank.wrapped = False
        rank.evaluate()
        rank.wrapped = True
        rank.go_apart().steps(2)

    assert quiet("TC403", two_ranks(play)) is Verdict.HELD
