"""TC405: parameters that were frozen, or other objects, when DDP was built."""

from __future__ import annotations

from tests.builders import MLP
from tests.checking import fires, quiet
from tests.golden import Golden, mentions
from tests.ranks import RankBuilder, merged
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict

LATE = ("Net.fc1.bias", "Net.fc1.weight")


def unfreezing(*, apart: bool = True) -> list[Event]:
    ranks = []
    for number in (0, 1):
        rank = RankBuilder(number)
        rank.model("Net", MLP, frozen=LATE)
        rank.wrap().optimizer()
        rank.freeze(*LATE, frozen=False)
        if apart:
            rank.go_apart(*LATE)
        ranks.append(rank.steps(3))
    return merged(*ranks)


BROKEN = unfreezing()


def test_fires_on_parameters_unfrozen_late(golden: Golden) -> None:
    finding = fires("TC405", BROKEN)
    assert (finding.first_step, finding.variables) == (0, LATE)
    golden(finding)
    assert mentions(finding, "train.py:30")


def test_fires_on_a_replaced_layer(golden: Golden) -> None:
    ranks = []
    for number in (0, 1):
        rank = RankBuilder(number)
        rank.model("Net", MLP)
        rank.wrap().replace(*LATE).optimizer()
        rank.go_apart(*LATE)  # type: ignore[attr-defined]
        ranks.append(rank.steps(2))
    finding = fires("TC405", merged(*ranks))
    assert finding.variables == LATE
    golden(finding)


def test_quiet_when_ranks_stay_equal() -> None:
    assert quiet("TC405", unfreezing(apart=False)) is Verdict.HELD


def test_quiet_on_parameters_that_the_wrapper_knows() -> None:
    ranks = []
    for number in (0, 1):
        rank = RankBuilder(number)
        rank.model("Net", MLP)
        rank.wrap().optimizer()
        rank.go_apart("Net.fc2.weight")  # type: ignore[attr-defined]
        ranks.append(rank.steps(2))
    assert quiet("TC405", merged(*ranks)) is Verdict.HELD
