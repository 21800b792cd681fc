"""TC414: gradients that are averaged over models which were never the same."""

from __future__ import annotations

from tests.builders import MLP
from tests.checking import fires, quiet
from tests.golden import Golden
from tests.ranks import RankBuilder, merged
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict

HEAD = "Net.fc2.bias"


def run(
    *,
    apart: bool = True,
    steps: int = 4,
    equal_from: int | None = None,
    reduced: bool = True,
    averaged: bool = False,
    group: str = "world",
    wrap: bool = False,
) -> list[Event]:
    """Two ranks; one parameter begins with other values if ``apart``, and is made equal later."""

    def play(rank: RankBuilder) -> RankBuilder:
        for number in range(steps):
            if number == equal_from:
                rank.apart = set()
            rank.begin_step().zero_grad().forward().backward()
            if reduced:
                rank.collective(variable=HEAD, group=group)
            rank.optimizer_step()
            if averaged:
                rank.collective(variable=HEAD)
        return rank.begin_step().end_step()

    ranks = []
    for number in (0, 1):
        rank = RankBuilder(number)
        rank.apart = {HEAD} if apart else set()
        rank.model("Net", MLP)
        if wrap:
            rank.wrap()
        rank.optimizer()
        ranks.append(play(rank))
    return merged(*ranks)


BROKEN = run()


def test_fires_at_the_first_step(golden: Golden) -> None:
    finding = fires("TC414", BROKEN)
    assert (finding.first_step, finding.variables, finding.rank) == (0, (HEAD,), 1)
    golden(finding)


def test_quiet_on_ranks_that_begin_alike() -> None:
    assert quiet("TC414", run(apart=False)) is Verdict.HELD


def test_quiet_where_weights_are_made_equal_before_the_second_step() -> None:
    """As some programs do, whose parameters are made by the first one."""
    assert quiet("TC414", run(equal_from=0)) is Verdict.HELD
    assert quiet("TC414", run(equal_from=1)) is Verdict.HELD


def test_quiet_where_gradients_are_not_exchanged_by_hand() -> None:
    alone = run(reduced=False)
    assert quiet("TC414", alone) is Verdict.NOT_TRIGGERED
    averaged = run(reduced=False, averaged=True)
    assert quiet("TC414", averaged) is Verdict.NOT_TRIGGERED
    part = run(group="group of ranks 0")
    assert quiet("TC414", part) is Verdict.NOT_TRIGGERED
    assert quiet("TC414", run(reduced=False, wrap=True)) is Verdict.NOT_TRIGGERED
