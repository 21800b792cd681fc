"""TC402: ranks that do not step equally often."""

from __future__ import annotations

from tests.builders import MLP
from tests.checking import fires, quiet
from tests.golden import Golden, mentions
from tests.ranks import RankBuilder, two_ranks
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict


def skipping(rank: RankBuilder) -> None:
    rank.steps(2)
    if rank.rank:
        rank.begin_step().zero_grad().forward().backward()
        rank.zero_grad().forward().backward().optimizer_step()
    else:
        rank.step()
    rank.steps(2)


BROKEN = two_ranks(skipping)


def test_fires_where_one_rank_skips_a_step() -> None:
    finding = fires("TC402", BROKEN)
    assert (finding.first_step, finding.rank) == (2, 1)
    assert mentions(finding, "torch.optim.adam.Adam.step")


def test_fires_on_unequal_numbers_of_updates(golden: Golden) -> None:
    def play(rank: RankBuilder) -> None:
        rank.steps(1)
        rank.step(omit={"optimizer_step"} if rank.rank else ())
        rank.steps(1)

    finding = fires("TC402", two_ranks(play))
    assert finding.first_step == 1
    golden(finding)
    assert mentions(finding, 1, 0)


def test_quiet_when_all_skip() -> None:
    events = two_ranks(lambda rank: rank.steps(2).step(omit={"optimizer_step"}).steps(2))
    assert quiet("TC402", events) is Verdict.HELD


def test_quiet_on_unequal_accumulation_without_synchronization() -> None:
    def play(rank: RankBuilder) -> None:
        for _ in range(3):
            rank.begin_step().zero_grad()
            rank.sync = False
            for _ in range(1 + rank.rank):
                rank.forward().backward()
            rank.sync = True
            rank.forward().backward().optimizer_step()

    assert quiet("TC402", two_ranks(play)) is Verdict.HELD


def test_quiet_when_a_rank_ends_earlier_or_trains_for_itself() -> None:
    events = two_ranks(lambda rank: rank.steps(3 + rank.rank))
    assert quiet("TC402", events) is Verdict.HELD
    assert quiet("TC402", two_ranks(skipping, wrap=False)) is Verdict.NOT_TRIGGERED


def probing(*, skips: bool) -> list[Event]:
    """Rank 0 trains a probe on the features between two epochs; then rank 1 may skip a step."""
    weights = [f"Net.{name}" for name in MLP]

    def epoch(rank: RankBuilder, *, updates: int = 3) -> None:
        for number in range(3):
            rank.begin_step().zero_grad().forward("Net").backward(only=weights)
            if number < updates:
                rank.optimizer_step()

    def play(rank: RankBuilder) -> None:
        epoch(rank)
        if rank.rank == 0:
            probe = [f"Probe.{name}" for name in MLP]
            rank.model("Probe", MLP).optimizer(names=probe)
            for _ in range(2):
                rank.begin_step().zero_grad("opt1").backward(only=probe).optimizer_step("opt1")
        epoch(rank, updates=2 if skips and rank.rank else 3)
        epoch(rank)

    return two_ranks(play)


def test_what_one_rank_trains_for_itself_has_no_place_among_the_steps(golden: Golden) -> None:
    assert quiet("TC402", probing(skips=False)) is Verdict.HELD
    assert quiet("TC401", probing(skips=False)) is Verdict.HELD
    finding = fires("TC402", probing(skips=True))
    golden(finding)
    assert mentions(finding, 1, 0, "opt0")
