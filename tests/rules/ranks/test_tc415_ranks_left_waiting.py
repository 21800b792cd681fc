"""TC415: ranks that wait for one that died, hung or took another way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.builders import MLP
from tests.checking import BY_CODE, fires, quiet
from tests.golden import Golden, mentions
from tests.ranks import RankBuilder, merged
from traincheck.check.engine import Engine, LiveEngine
from traincheck.schema.events import Event, MarkEvent
from traincheck.schema.findings import Finding, Verdict
from traincheck.schema.marks import Marks
from traincheck.schema.torch_api import Families

Play = Callable[[RankBuilder], Any]
FAILED = {"exit_status": 1}
INTERRUPTED = {"exit_status": 1, "interrupted": "SIGINT"}
ERROR = {"exception": "ValueError", "where": "train.py:12"}


class Rank(RankBuilder):
    """One rank that makes collectives as they are recorded: entered, and come back."""

    def __init__(self, number: int, *, wrap: bool = False) -> None:
        super().__init__(number)
        self.entered = 0
        self.mark(Marks.PROCESS_GROUP, rank=number, world_size=2)
        self.model("Net", MLP)
        if wrap:
            self.wrap()
        self.optimizer()

    def enter(self, line: int = 31, op: str = "all_reduce", **fields: Any) -> Rank:
        place = f"train.py:{line}"
        self._fields = {"op": op, "group": "world", "number": self.entered, "where": place}
        self._fields.update(fields)
        self.entered += 1
        self.mark(Marks.COLLECTIVE_ENTERED, **self._fields)
        return self

    def leave(self, **fields: Any) -> Rank:
        given = {**self._fields, **fields}
        self._collectives = given.pop("number")
        self.collective(given.pop("op"), **given)
        return self

    def train(self, steps: int = 2) -> Rank:  # type: ignore[override]
        for _ in range(steps):
            self.begin_step().zero_grad().forward().backward()
            self.enter().leave()
            self.optimizer_step()
            self.end_step()
        return self


def check(
    first: Play, second: Play, end: dict[str, Any] | None = None, *, wrap: bool = False
) -> tuple[list[Finding], Verdict]:
    """Two ranks that train for two steps, what each does then, and how the job ends."""
    ranks = []
    for number, play in enumerate((first, second)):
        rank = Rank(number, wrap=wrap).train()
        play(rank)
        ranks.append(rank.take())
    return judged(merged(*ranks), end)


def judged(events: list[Event], end: dict[str, Any] | None) -> tuple[list[Finding], Verdict]:
    engine = Engine(rules=[BY_CODE["TC415"]])
    for event in events:
        engine.observe(event)
    if end is not None:
        silent_s = end.pop("silent_s", 0)
        last_ns = max(event.time_ns for event in events) + int(silent_s * 1e9)
        engine.end(MarkEvent(0, last_ns, None, "train", text=Marks.RUN_ENDED, data=end))
    report = engine.finish()
    return list(report.findings), report.verdicts["TC415"]


def one(found: tuple[list[Finding], Verdict]) -> Finding:
    (finding,), verdict = found
    assert verdict is Verdict.VIOLATED
    assert finding.severity == "error"
    return finding


def waits(rank: Rank) -> Rank:
    return rank.enter(line=40)


def stall(rank: Rank, seconds: float = 60.0) -> Rank:
    rank.mark(Marks.STALLED, silent_s=seconds)
    return rank


def ends(rank: Rank, **data: Any) -> Rank:
    rank.mark(Marks.ENDED, **data)
    return rank


def broken() -> list[Event]:
    """Rank 0 waits, rank 1 is silent."""
    ranks = [Rank(0).train(), Rank(1).train()]
    stall(waits(ranks[0]))
    stall(ranks[1])
    return merged(*(rank.take() for rank in ranks))


BROKEN = broken()


@pytest.mark.parametrize(
    "play",
    [lambda rank: ends(rank, **ERROR), lambda rank: rank, ends],
    ids=["raised", "died", "ended"],
)
def test_a_rank_that_is_gone(play: Play, golden: Golden) -> None:
    finding = golden(one(check(waits, play, FAILED)))
    assert finding.rank == 1
    assert mentions(finding, 0, "all_reduce", "train.py:40")


def test_a_rank_whose_collective_raised_waited_too(golden: Golden) -> None:
    def raises(rank: Rank) -> Rank:
        waits(rank).leave(raised="RuntimeError")
        return ends(rank, exception="RuntimeError", where="train.py:40")

    finding = one(check(raises, lambda rank: ends(rank, **ERROR), FAILED))
    golden(finding)
    assert mentions(finding, 1, "train.py:12")


def test_what_is_observed_of_an_unfinished_step_is_written_after_the_error() -> None:
    def raises(rank: Rank) -> Rank:
        waits(rank).leave(raised="RuntimeError").mark("loss terms", terms=[], constants=[])
        return ends(rank, exception="RuntimeError", where="train.py:40")

    assert one(check(raises, lambda rank: ends(rank, **ERROR), FAILED)).code == "TC415"


def test_a_job_that_dies_in_a_collective_of_all_ranks(golden: Golden) -> None:
    finding = one(check(waits, waits, FAILED))
    golden(finding)
    assert mentions(finding, "all_reduce")
    killed = one(check(lambda rank: ends(waits(rank), **ERROR), waits, FAILED))
    golden(killed)
    assert mentions(killed, 1)


def test_a_rank_in_a_collective_of_another_group(golden: Golden) -> None:
    def elsewhere(rank: Rank) -> Rank:
        return rank.enter(line=50, op="barrier", group="g of ranks 0,1", number=0)

    finding = one(check(waits, elsewhere, FAILED))
    assert finding.rank in (0, 1)
    golden(finding)
    assert mentions(finding, "train.py:50")


def test_only_members_of_the_group_are_waited_for(golden: Golden) -> None:
    def alone(rank: Rank) -> Rank:
        return rank.enter(group="g of ranks 0,2", number=0)

    golden(one(check(alone, ends, FAILED)))


def test_a_rank_that_waits_inside_backward(golden: Golden) -> None:
    def in_backward(rank: Rank) -> Rank:
        rank.begin_step().zero_grad().forward()
        return rank.mark(Marks.BACKWARD_ENTERED, where="train.py:33")  # type: ignore[return-value]

    finding = one(check(in_backward, lambda rank: ends(rank, **ERROR), FAILED, wrap=True))
    golden(finding)
    assert mentions(finding, 0, "(train.py:33)")
    findings, _ = check(in_backward, lambda rank: ends(rank, **ERROR), FAILED)
    assert not findings, "without DDP a backward pass waits for nobody"

    def comes_back(rank: Rank) -> Rank:
        in_backward(rank)
        return rank.call(Families.BACKWARD, where="train.py:33")  # type: ignore[return-value]

    findings, _ = check(comes_back, lambda rank: ends(rank, **ERROR), FAILED, wrap=True)
    assert not findings


def test_a_rank_that_still_computes_its_gradients_waits_for_nobody(golden: Golden) -> None:
    """A hook within backward hangs on one rank: both are inside the same call."""

    def computes(rank: Rank) -> Rank:
        rank.begin_step().zero_grad().forward()
        rank.mark(Marks.BACKWARD_ENTERED, where="train.py:33", tells=True)
        return rank

    def exchanges(rank: Rank) -> Rank:
        computes(rank).mark(Marks.BACKWARD_COMPUTED)
        return rank

    finding = one(check(exchanges, computes, {**FAILED, "silent_s": 90}, wrap=True))
    golden(finding)
    assert finding.rank == 1
    assert mentions(finding, 0, "it computes gradients in its backward pass (train.py:33)")
    assert not check(computes, computes, {**FAILED, "silent_s": 90}, wrap=True)[0]
    golden(one(check(exchanges, exchanges, {**FAILED, "silent_s": 90}, wrap=True)))


@pytest.mark.parametrize(
    ("first", "second", "end"),
    [
        (ends, ends, {"exit_status": 0}),
        (ends, ends, FAILED),
        (lambda rank: ends(rank.enter().leave(pending=True)), ends, FAILED),  # of async works
        (lambda rank: rank.train(3), ends, {"exit_status": 0}),  # it ended earlier
        (lambda rank: rank.train(3), ends, None),
        (waits, lambda rank: rank, None),  # a run that goes on
        (waits, lambda rank: rank, {"exit_status": 0}),
        (waits, lambda rank: rank, INTERRUPTED),
        (waits, lambda rank: ends(rank, exception="KeyboardInterrupt"), INTERRUPTED),
        (waits, waits, INTERRUPTED),
        (
            lambda rank: waits(rank).leave(),
            lambda rank: rank.end_step(recorded=False),  # what it did was not recorded
            FAILED,
        ),
        (waits, lambda rank: rank.begin_step().end_step(recorded=False), FAILED),
    ],
)
def test_healthy_ends(first: Play, second: Play, end: dict[str, Any] | None) -> None:
    findings, verdict = check(first, second, end)
    assert not findings
    assert verdict is Verdict.HELD


def test_an_interrupted_job_that_hung_is_told(golden: Golden) -> None:
    finding = one(check(waits, lambda rank: rank, {**INTERRUPTED, "silent_s": 312}))
    golden(finding)
    assert mentions(finding, 1, 312)
    finding = one(check(waits, lambda rank: ends(rank, **ERROR), INTERRUPTED))
    golden(finding)
    assert mentions(finding, 1)


def test_other_operations_are_of_another_rule() -> None:
    findings, _ = check(waits, lambda rank: rank.enter(op="barrier"), FAILED)
    assert not findings


def test_silence_fires_while_the_run_goes_on(golden: Golden) -> None:
    finding = fires("TC415", BROKEN)
    golden(finding)
    assert mentions(finding, 1, 60)


def after_the_stall(last: Event) -> tuple[LiveEngine, list[str]]:
    """Rank 0 waits, rank 1 is silent for 60 s; then ``last`` is its next event, 61 s later."""
    events = broken()
    after_ns = max(event.time_ns for event in events) + 61 * 10**9
    written: list[str] = []
    live = LiveEngine(
        Engine(rules=[BY_CODE["TC415"]]),
        lambda finding: written.append("provisional" if finding.provisional else "final"),
        lambda finding: written.append("withdrawn"),
    )
    mine = next(event for event in reversed(events) if event.rank == 1)
    header = last.replace(time_ns=after_ns, rank=1, stream=mine.stream, seq=mine.seq + 1)
    live.feed([*events, header])
    return live, written


def test_quiet_where_nobody_waits() -> None:
    ranks = [Rank(0).train(), Rank(1).train()]
    events = merged(*(stall(rank).take() for rank in ranks))
    assert quiet("TC415", events) is Verdict.HELD


def test_a_silent_rank_that_goes_on_was_only_slow() -> None:
    live, written = after_the_stall(MarkEvent(0, 0, 2, "train", text="evaluated"))
    assert written == ["provisional", "withdrawn"]
    report = live.engine.finish()
    assert not report.findings
    assert report.verdicts["TC415"] is Verdict.HELD


def test_a_silent_rank_that_only_ends_was_not_slow(golden: Golden) -> None:
    end = MarkEvent(0, 0, 2, "train", text=Marks.ENDED, data={"exception": "KeyboardInterrupt"})
    live, written = after_the_stall(end)
    assert written == ["provisional"]
    (finding,) = live.engine.finish().findings
    golden(finding)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda rank: stall(waits(rank)), lambda rank: rank),  # the other one works
        (waits, stall),  # the one that waits has only begun to
        (stall, stall),  # nobody waits, as in long computations
        (lambda rank: stall(rank.enter(), 70).leave(), lambda rank: stall(rank).enter().leave()),
        (lambda rank: stall(waits(rank)), lambda rank: stall(waits(rank))),  # a slow collective
    ],
)
def test_quiet_on_slow_ranks(first: Play, second: Play) -> None:
    findings, verdict = check(first, second)
    assert not findings
    assert verdict is Verdict.HELD


def test_a_single_process_is_not_triggered() -> None:
    findings, verdict = judged(Rank(0).train().take(), dict(FAILED))
    assert (findings, verdict) == ([], Verdict.NOT_TRIGGERED)
