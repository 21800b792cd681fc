"""Streams of a rank by time, ranks by step."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from tests.builders import TraceBuilder
from traincheck.schema.events import Event, MarkEvent, StepEvent
from traincheck.store.order import BEFORE_STEPS, RankClock, merge_ranks, merge_streams


def mark(time_ns: int, stream: str, seq: int = 0, step: int | None = None) -> MarkEvent:
    return MarkEvent(seq, time_ns, step, "train", 0, stream)


def step_end(step: int, time_ns: int, stream: str = "p1-t0") -> StepEvent:
    return StepEvent(0, time_ns, step, "train", 0, stream)


def in_batches(events: Sequence[Event], sizes: Iterable[int]) -> Iterable[Sequence[Event]]:
    start = 0
    for size in sizes:
        if events[start : start + size]:
            yield events[start : start + size]
        start += size
    if events[start:]:
        yield events[start:]


STREAMS = st.lists(st.lists(st.integers(0, 30), max_size=12).map(sorted), max_size=5)
SIZES = st.lists(st.integers(1, 4), max_size=6)


@given(STREAMS, SIZES)
def test_streams_merge_as_heapq_merges_them(times: list[list[int]], sizes: list[int]) -> None:
    streams = [
        [mark(time_ns, f"p{i}-t0", seq) for seq, time_ns in enumerate(stream)]
        for i, stream in enumerate(times)
    ]
    expected = heapq.merge(*streams, key=lambda event: (event.time_ns, event.stream, event.seq))
    parts = [(f"p{i}-t0", iter(in_batches(s, sizes))) for i, s in enumerate(streams)]
    assert [e for batch in merge_streams(parts) for e in batch] == list(expected)


@given(st.lists(st.lists(st.integers(0, 30), max_size=12), max_size=4), SIZES)
def test_a_stream_keeps_its_own_order_even_when_its_clock_goes_back(
    times: list[list[int]], sizes: list[int]
) -> None:
    streams = [
        [mark(time_ns, f"p{i}-t0", seq) for seq, time_ns in enumerate(stream)]
        for i, stream in enumerate(times)
    ]
    parts = [(f"p{i}-t0", iter(in_batches(s, sizes))) for i, s in enumerate(streams)]
    merged = [e for batch in merge_streams(parts) for e in batch]
    for i, stream in enumerate(streams):
        assert [e for e in merged if e.stream == f"p{i}-t0"] == stream


def rank_events(rank: int, steps: int, seed: int) -> list[Event]:
    """A rank's run with a worker's events in between."""
    source = random.Random(seed)
    events = (
        TraceBuilder(rank=rank).process().model().optimizer().steps(steps, eval_every=2).build()
    )
    span = events[-1].time_ns - events[0].time_ns
    for seq in range(5):
        time_ns = events[0].time_ns + source.randrange(span + 1)
        events.append(MarkEvent(seq, time_ns, None, "train", rank, "p9-t0", text="x"))
    return sorted(events, key=lambda event: event.time_ns)


@given(st.lists(st.integers(1, 5), min_size=2, max_size=4), st.integers(0, 99))
def test_a_step_of_all_ranks_comes_before_the_next_step_of_any(
    lengths: list[int], seed: int
) -> None:
    runs = {rank: rank_events(rank, steps, seed + rank) for rank, steps in enumerate(lengths)}
    merged = [
        event
        for batch in merge_ranks((rank, iter((run,))) for rank, run in runs.items())
        for event in batch
    ]
    for rank, run in runs.items():
        assert [event for event in merged if event.rank == rank] == run
    steps = [BEFORE_STEPS if e.stage == "init" else e.step for e in merged if e.step is not None]
    assert steps == sorted(steps)
    same_step = [e.rank for e in merged if e.step == 0 and e.stage != "init"]
    assert same_step == sorted(same_step), "within a step the lower rank comes first"


def test_a_rank_that_ends_early_does_not_hold_the_others() -> None:
    runs = {0: rank_events(0, 1, 0), 1: rank_events(1, 4, 0)}
    merged = [e for b in merge_ranks((r, iter((run,))) for r, run in runs.items()) for e in b]
    assert len(merged) == sum(map(len, runs.values()))
    assert merged[-1].rank == 1


def test_a_worker_belongs_to_where_its_rank_has_come() -> None:
    clock = RankClock()
    events = [
        mark(0, "p9-t0"),
        mark(1, "p1-t0", step=0),
        mark(2, "p9-t0"),
        step_end(0, 3),
        mark(4, "p9-t0"),
        step_end(1, 5),
    ]
    assert [clock.place(event) for event in events] == [BEFORE_STEPS, 0, 0, 0, 1, 1]
    assert clock.position == 2


def test_a_lost_step_end_does_not_shift_what_follows() -> None:
    clock = RankClock()
    places = [
        clock.place(event)
        for event in (step_end(0, 1), mark(2, "p1-t0", step=1), mark(3, "p1-t0", step=2))
    ]
    assert places == [0, 1, 2]


def test_a_second_training_in_a_rank_comes_after_the_first_in_all_ranks() -> None:
    clock = RankClock()
    first = [clock.place(step_end(step, step)) for step in range(3)]
    second = [clock.place(step_end(step, 10 + step, "p2-t0")) for step in range(3)]
    assert first == [0, 1, 2]
    assert min(second) > max(first)
    assert [place - second[0] for place in second] == [0, 1, 2]


def test_a_helper_process_that_takes_no_steps_does_not_restart_its_rank() -> None:
    clock = RankClock()
    helper = clock.place(mark(0, "p2-t0", step=0))
    assert helper == 0
    assert [clock.place(step_end(step, 1 + step)) for step in range(2)] == [0, 1]
    assert clock.place(mark(5, "p2-t0", step=0)) == 2
