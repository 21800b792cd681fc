"""TC511: ranks that share their batches draw different numbers."""

from __future__ import annotations

from tests.checking import fires, quiet
from tests.golden import Golden
from tests.ranks import RankBuilder, two_ranks
from traincheck.schema.events import Event, RngEvent
from traincheck.schema.findings import Verdict


def run(*, drift: int | None = 4, own: bool = False, draws: bool = True) -> list[Event]:
    """Six steps; from ``drift`` on, rank 1 draws other numbers."""

    def play(rank: RankBuilder) -> None:
        for step in range(6):
            rank.begin_step()
            rank.batch(samples=[f"{step}-{rank.rank if own else 0}"])
            apart = drift is not None and step >= drift and rank.rank
            state = f"xxh3-128:{step if draws else 0}{'-other' if apart else ''}"
            rank.add(RngEvent, source="torch", change="state", fingerprint=state)

    return two_ranks(play, wrap=False)


BROKEN = run()


def test_fires_at_the_first_step_in_which_they_differ(golden: Golden) -> None:
    finding = fires("TC511", BROKEN)
    assert (finding.first_step, finding.violations) == (4, 1)
    golden(finding)


def test_quiet_when_they_stay_together() -> None:
    assert quiet("TC511", run(drift=None)) is Verdict.HELD


def test_quiet_when_they_were_never_equal_for_long() -> None:
    assert quiet("TC511", run(drift=0)) is Verdict.HELD
    assert quiet("TC511", run(drift=2)) is Verdict.HELD


def test_quiet_when_nothing_is_drawn() -> None:
    assert quiet("TC511", run(draws=False)) is Verdict.HELD


def test_quiet_in_data_parallel_training() -> None:
    assert quiet("TC511", run(own=True)) is Verdict.NOT_TRIGGERED
