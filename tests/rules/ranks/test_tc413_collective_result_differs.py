"""TC413: what arrives is not what was sent."""

from __future__ import annotations

from typing import Any

import pytest

from tests.checking import fires, quiet
from tests.golden import Golden, mentions
from tests.ranks import RankBuilder, two_ranks
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict


def pairs(*, lossy: bool = True, peer: bool = True) -> list[Event]:
    def play(rank: RankBuilder) -> None:
        for number in range(3):
            rank.begin_step()
            other = 1 - rank.rank if peer else None
            if rank.rank == 0:
                rank.collective("send", before=f"xxh3-128:{number}", peer=other)
            else:
                lost = lossy and number == 1
                rank.collective("recv", after=f"xxh3-128:{9 if lost else number}", peer=other)

    return two_ranks(play, wrap=False)


def together(usual: str = "all_reduce", **odd: Any) -> list[Event]:
    def play(rank: RankBuilder) -> None:
        for number in range(3):
            rank.begin_step()
            given: dict[str, Any] = {"op": usual, "after": f"xxh3-128:{number}"}
            rank.collective(**{**given, **(odd if number == 1 and rank.rank else {})})

    return two_ranks(play, wrap=False)


BROKEN = pairs()


def test_fires_when_data_is_lost_on_the_way(golden: Golden) -> None:
    finding = fires("TC413", BROKEN)
    assert (finding.first_step, finding.rank) == (1, 1)
    golden(finding)
    assert mentions(finding, 0)


def test_fires_when_a_result_differs_between_ranks() -> None:
    assert fires("TC413", together(after="xxh3-128:9")).first_step == 1


@pytest.mark.parametrize(
    "odd",
    [
        {"after": None},  # asynchronous, or on a GPU
        {"after": "xxh3-128:9", "shape": [1]},  # TC411
        {"after": "xxh3-128:9", "op": "broadcast"},  # TC410
    ],
)
def test_quiet_where_nothing_can_be_compared(odd: dict[str, Any]) -> None:
    assert quiet("TC413", together(**odd)) is Verdict.HELD


def test_quiet_when_all_arrives() -> None:
    assert quiet("TC413", pairs(lossy=False)) is Verdict.HELD
    assert quiet("TC413", together()) is Verdict.HELD
    assert quiet("TC413", together("all_gather", after="xxh3-128:9")) is Verdict.NOT_TRIGGERED
    assert quiet("TC413", pairs(peer=False)) is Verdict.NOT_TRIGGERED
