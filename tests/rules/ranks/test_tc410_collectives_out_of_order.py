"""TC410: ranks that meet in different collectives."""

from __future__ import annotations

from tests.checking import fires, quiet
from tests.golden import Golden, mentions
from tests.ranks import RankBuilder, two_ranks
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict


def run(*per_rank: list[tuple[str, str | None]], skipped: int = 0) -> list[Event]:
    def play(rank: RankBuilder) -> None:
        rank.steps(1)
        rank.skipped_steps(skipped).begin_step()
        for op, variable in per_rank[rank.rank]:
            rank.collective(op, variable=variable)

    return two_ranks(play, wrap=False)


ONE, TWO = ("all_reduce", "Net.fc1.weight"), ("all_reduce", "Net.fc2.weight")
BROKEN = run([ONE, TWO], [TWO, ONE])


def test_fires_on_gradients_that_are_swapped() -> None:
    finding = fires("TC410", BROKEN)
    assert (finding.first_step, finding.violations) == (1, 1)
    assert mentions(finding, "Net.fc1.weight", "Net.fc2.weight")


def test_fires_on_a_collective_that_one_rank_leaves_out(golden: Golden) -> None:
    finding = fires("TC410", run([("all_reduce", None), ("barrier", None)], [("barrier", None)]))
    golden(finding)


def test_quiet_on_the_same_order() -> None:
    assert quiet("TC410", run([ONE, TWO], [ONE, TWO])) is Verdict.HELD


def test_a_rank_that_holds_the_model_of_the_others_as_a_part() -> None:
    """A parameter server; other weights of that part are others still."""
    served = ("broadcast", "Server.net.fc1.weight"), ("broadcast", "Net.fc1.weight")
    assert quiet("TC410", run(*[[one] for one in served])) is Verdict.HELD
    other = ("broadcast", "Net.fc2.weight")
    assert mentions(fires("TC410", run([served[0]], [other])), "fc2")


def test_quiet_on_messages_between_two() -> None:
    events = run([("send", None), ONE], [("recv", None), ("send", None), ONE])
    assert quiet("TC410", events) is Verdict.HELD


def test_quiet_on_a_rank_that_ended() -> None:
    assert quiet("TC410", run([ONE, TWO], [ONE])) is Verdict.HELD


def test_quiet_after_steps_that_nobody_saw() -> None:
    assert quiet("TC410", run([ONE, TWO], [TWO, ONE], skipped=2)) is Verdict.NOT_TRIGGERED


def test_groups_are_compared_apart() -> None:
    def play(rank: RankBuilder) -> None:
        rank.begin_step()
        rank.collective("barrier", group=f"1 of ranks {rank.rank}")
        rank.collective("broadcast" if rank.rank else "gather", group=f"2 of ranks {rank.rank}")
        rank.collective()

    assert quiet("TC410", two_ranks(play, wrap=False)) is Verdict.HELD
