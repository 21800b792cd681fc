"""The k-th call of a group, as each rank has made it."""

from __future__ import annotations

from typing import Any

from traincheck.readings.distributed.collectives import Collectives, Meeting
from traincheck.schema.events import CollectiveEvent, Event, MarkEvent, StepEvent
from traincheck.schema.marks import Marks


def call(rank: int, number: int = 0, op: str = "all_reduce", **fields: Any) -> CollectiveEvent:
    given = {"shape": [2], "dtype": "float32", "stream": f"p{rank}-t0", **fields}
    return CollectiveEvent(
        seq=number, time_ns=number, rank=rank, step=0, stage="train", op=op, number=number, **given
    )


def entry(rank: int, number: int = 0) -> MarkEvent:
    data = {"op": "all_reduce", "number": number, "shape": [2], "dtype": "float32"}
    return MarkEvent(
        seq=number,
        time_ns=number,
        rank=rank,
        step=0,
        stage="train",
        stream=f"p{rank}-t0",
        text=Marks.COLLECTIVE_ENTERED,
        data=data,
    )


def met(*events: Event) -> list[Meeting]:
    collectives, found = Collectives(), []
    for event in events:
        collectives.observe(event)
        found += [one._replace(calls=dict(one.calls)) for one in collectives.met]
    return found


def ranks_of(meeting: Meeting) -> tuple[list[int], list[int]]:
    pair, by_rank = meeting.pair, meeting.by_rank
    return [pair.first.rank, pair.other.rank], [by_rank.first.rank, by_rank.other.rank]


def test_each_rank_meets_those_that_came_before() -> None:
    found = [m for m in met(call(1), call(2), call(0)) if not m.is_back]
    assert [ranks_of(m) for m in found] == [([1, 2], [1, 2]), ([1, 0], [0, 2])]


def test_a_rank_that_comes_late_is_compared_from_its_first_call_on() -> None:
    events = [call(0), call(1), call(0, 1), call(1, 1), call(2, op="barrier")]
    assert [m.is_same for m in met(*events) if not m.is_back] == [True, True, False]


def test_what_was_entered_and_comes_back_is_one_call() -> None:
    entered = [m.is_back for m in met(entry(0), entry(1))]
    assert entered == [False]
    assert [m.is_back for m in met(entry(0), entry(1), call(0), call(1))] == [False, True]


def test_nothing_follows_a_call_in_which_ranks_differ() -> None:
    (meeting,) = met(call(0), call(1, op="barrier"), call(0, 1), call(1, 1))
    assert not meeting.is_same


def test_what_is_sent_is_compared_with_what_arrives() -> None:
    sent = call(0, op="send", peer=1, before="xxh3-128:1", after="xxh3-128:9")
    (meeting,) = met(sent, call(1, op="recv", peer=0, after="xxh3-128:2"))
    assert meeting.pair.contents == ["xxh3-128:1", "xxh3-128:2"]
    assert meeting.pair.receiver.rank == 1
    assert meeting.pair.shapes is None


def test_nothing_is_compared_after_a_step_that_nobody_saw() -> None:
    gap = StepEvent(seq=0, time_ns=0, step=0, stage="train", recorded=False)
    assert met(call(0), call(1))
    assert not met(call(0), gap, call(1))


def test_a_group_that_is_made_again_counts_anew() -> None:
    first, second = {"after": "xxh3-128:1"}, {"after": "xxh3-128:2"}
    events = [call(r, **given) for given in (first, second) for r in (1, 0)]
    contents = [m.pair.contents for m in met(*events) if m.is_back]
    assert contents == [["xxh3-128:1"] * 2, ["xxh3-128:2"] * 2]
