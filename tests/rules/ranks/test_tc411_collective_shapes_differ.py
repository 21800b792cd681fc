"""TC411: collectives entered with different shapes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.checking import fires, quiet
from tests.golden import mentions
from tests.ranks import RankBuilder, two_ranks
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict


def run(op: str = "all_reduce", *, steps: int = 2, **odd: Any) -> list[Event]:
    def play(rank: RankBuilder) -> None:
        for number in range(steps):
            rank.begin_step()
            rank.collective(op, **(odd if number and rank.rank else {}))

    return two_ranks(play, wrap=False)


BROKEN = run(shape=[5, 4])


def test_fires_at_the_first_call_with_another_shape() -> None:
    finding = fires("TC411", BROKEN)
    assert (finding.first_step, finding.rank) == (1, 1)
    assert mentions(finding, "[5, 4]")


def test_fires_on_another_dtype() -> None:
    assert mentions(fires("TC411", run(dtype="float64")), "float64")


@pytest.mark.parametrize(
    ("op", "odd"),
    [
        ("all_to_all_single", {"shape": [5, 4], "uneven": True}),
        ("all_gather_object", {"shape": [9]}),
        ("all_reduce", {"shape": None}),
        ("send", {"shape": [9]}),
    ],
)
def test_quiet_where_shapes_may_differ(op: str, odd: dict[str, Any]) -> None:
    assert quiet("TC411", run(op, **odd)) is not Verdict.VIOLATED


def test_quiet_on_equal_shapes() -> None:
    assert quiet("TC411", run()) is Verdict.HELD


def entered(*, returns: bool, odd_shape: list[int] | None = None) -> list[Event]:
    """Two calls as a full recording tells them: entered, and perhaps left."""

    def play(rank: RankBuilder) -> None:
        for number in range(2):
            rank.begin_step()
            shape = odd_shape if number and rank.rank and odd_shape else [4, 4]
            data = {"op": "all_reduce", "group": "world", "number": number}
            rank.mark("collective entered", **data, shape=shape, dtype="float32")
            if returns or not number:
                rank.collective(shape=shape)

    return two_ranks(play, wrap=False)


def test_fires_when_nobody_comes_back() -> None:
    assert fires("TC411", entered(returns=False, odd_shape=[9])).first_step == 1


def test_a_call_that_is_told_twice_counts_once() -> None:
    assert quiet("TC411", entered(returns=True)) is Verdict.HELD
    assert fires("TC411", entered(returns=True, odd_shape=[9])).violations == 1
