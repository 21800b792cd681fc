"""TC515: data-parallel ranks that draw the same random numbers."""

from __future__ import annotations

from tests.checking import fires, quiet
from tests.golden import Golden
from tests.ranks import RankBuilder, two_ranks
from traincheck.schema.events import Event, RngEvent
from traincheck.schema.findings import Verdict


def run(
    *, alike: bool = True, own: bool = True, draws: bool = True, wrap: bool = True, steps: int = 6
) -> list[Event]:
    """Steps in which each rank draws. own: batches of each rank."""

    def play(rank: RankBuilder) -> None:
        for step in range(steps):
            rank.begin_step()
            rank.batch(samples=[f"{step}-{rank.rank if own else 0}"])
            rank.zero_grad().forward().backward().optimizer_step()
            state = f"xxh3-128:{step if draws else 0}-{0 if alike else rank.rank}"
            rank.add(RngEvent, source="torch", change="state", fingerprint=state)

    return two_ranks(play, wrap=wrap)


BROKEN = run()


def test_fires_when_ranks_draw_the_same_for_other_data(golden: Golden) -> None:
    finding = fires("TC515", BROKEN)
    assert (finding.first_step, finding.violations) == (4, 1)
    golden(finding)


def test_quiet_on_draws_of_their_own() -> None:
    assert quiet("TC515", run(alike=False)) is Verdict.NOT_TRIGGERED


def test_quiet_when_nothing_is_drawn_or_little() -> None:
    assert quiet("TC515", run(draws=False)) is Verdict.HELD
    assert quiet("TC515", run(steps=4)) is Verdict.HELD


def test_quiet_when_batches_are_shared_and_without_ddp() -> None:
    assert quiet("TC515", run(own=False)) is Verdict.NOT_TRIGGERED
    assert quiet("TC515", run(wrap=False)) is Verdict.NOT_TRIGGERED
