"""Following a run gives what a replay gives afterwards, however the files grew."""

from __future__ import annotations

import os
import platform
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import TraceBuilder, healthy_run
from traincheck.errors import TraceFormatError
from traincheck.schema.codec import encode
from traincheck.schema.events import Event, MarkEvent
from traincheck.schema.layout import event_file_name
from traincheck.schema.marks import Marks
from traincheck.store.manifest import Manifest, write_manifest
from traincheck.store.reader import TraceReader
from traincheck.store.tail import TailReader
from traincheck.store.writer import TraceWriter

RUNNING = Manifest(run_id="live", created_with={"hostname": "another-machine"})
LOCAL = replace(RUNNING, created_with={"hostname": platform.node()})  # its processes are looked for
ENDED = replace(RUNNING, ended="2026-01-01T00:00:00+00:00", exit_status=0)
NOBODY = 2**22 + 1  # beyond the largest process id of Linux

Action = Callable[[], None]


class Stage:
    """Plays a run: each time the reader sleeps, the next few actions happen and time passes."""

    def __init__(self, actions: list[Action], *, per_sleep: int = 3, tick_s: float = 0.2) -> None:
        self.now_s = 0.0
        self._actions = actions
        self._per_sleep = per_sleep
        self._tick_s = tick_s

    def sleep(self, _: float) -> None:
        self.now_s += self._tick_s
        for action in self._actions[: self._per_sleep]:
            action()
        del self._actions[: self._per_sleep]

    def follow(self, run: Path, **options: float) -> list[Event]:
        return list(self.reader(run, **options).events())

    def reader(self, run: Path, **options: float) -> TailReader:
        return TailReader(run, sleep=self.sleep, clock=lambda: self.now_s, **options)  # type: ignore[arg-type]


def file_of(run: Path, event: Event, rank: int | None = None) -> Path:
    pid, _, thread = event.stream.partition("-")
    where = event.rank if rank is None else rank
    return run / event_file_name(where, int(pid[1:]), int(thread[1:]))


def append(path: Path, data: bytes) -> Action:
    def act() -> None:
        with path.open("ab") as file:
            file.write(data)

    return act


def end(run: Path) -> Action:
    return lambda: write_manifest(run, ENDED)


def growth(run: Path, events: list[Event], source: random.Random) -> list[Action]:
    """Append these events in this order, in pieces that begin and end anywhere in a line."""
    actions: list[Action] = []
    path, data = file_of(run, events[0]), b""
    for event in events:
        if file_of(run, event) != path:
            actions.append(append(path, data))  # collection, too, hands over whole lines here
            path, data = file_of(run, event), b""
        data += encode(event) + b"\n"
        if source.random() < 0.3:
            cut = source.randrange(len(data) + 1)
            actions.append(append(path, data[:cut]))
            data = data[cut:]
    return [*actions, append(path, data)]


def shuffled(parts: list[list[Action]], source: random.Random) -> list[Action]:
    """The parts interleaved at random, each in its own order."""
    order = [part for part in parts for _ in part]
    source.shuffle(order)
    iterators = {id(part): iter(part) for part in parts}
    return [next(iterators[id(part)]) for part in order]


def rank_events(rank: int, steps: int, world: int, source: random.Random) -> list[Event]:
    """A rank with a second thread and a worker, by time."""
    builder = TraceBuilder(rank=rank, pid=10 + rank).process(world_size=world)
    events = builder.model().optimizer().steps(steps, eval_every=2).build()
    first, last = events[0].time_ns, events[-1].time_ns
    for stream, step in ((f"p{10 + rank}-t1", 0), (f"p{90 + rank}-t0", None)):
        times = sorted(source.sample(range(first, last), 8))
        events += [
            MarkEvent(seq, t, step, "train", rank, stream, text="x") for seq, t in enumerate(times)
        ]
    return sorted(events, key=lambda event: event.time_ns)


@settings(max_examples=40)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_following_gives_what_a_replay_gives(lengths: list[int], source: random.Random) -> None:
    with TemporaryDirectory() as folder:
        run = Path(folder)
        write_manifest(run, RUNNING)
        parts = [
            growth(run, rank_events(rank, steps, len(lengths), source), source)
            for rank, steps in enumerate(lengths)
        ]
        stage = Stage([*shuffled(parts, source), end(run)], per_sleep=source.randint(1, 9))
        followed = stage.follow(run)
        assert followed == list(TraceReader(run).events())


@settings(max_examples=30)
@given(st.randoms(use_true_random=False))
def test_files_that_grow_at_any_pace_keep_their_order_and_lose_nothing(
    source: random.Random,
) -> None:
    with TemporaryDirectory() as folder:
        run = Path(folder)
        write_manifest(run, RUNNING)
        events = [e for rank in (0, 1) for e in rank_events(rank, 3, 2, source)]
        streams: dict[tuple[int, str], list[Event]] = {}
        for event in events:
            streams.setdefault((event.rank, event.stream), []).append(event)
        parts = [growth(run, stream, source) for stream in streams.values()]
        stage = Stage([*shuffled(parts, source), end(run)], per_sleep=source.randint(1, 9))
        followed = stage.follow(run, settle_s=1.0)
        assert len(followed) == len(events)
        for (rank, stream), expected in streams.items():
            assert [e for e in followed if (e.rank, e.stream) == (rank, stream)] == expected


def test_a_file_renamed_when_its_rank_is_known_is_read_once_and_under_that_rank(
    tmp_path: Path,
) -> None:
    write_manifest(tmp_path, RUNNING)
    zero = TraceBuilder(rank=0, pid=5).process(world_size=2).model().optimizer().steps(2).build()
    one = TraceBuilder(rank=1, pid=6).process(world_size=2).model().optimizer().steps(2).build()
    early, late = file_of(tmp_path, one[0], rank=0), file_of(tmp_path, one[0])
    lines = [encode(event) + b"\n" for event in one]
    actions = [
        append(file_of(tmp_path, zero[0]), b"".join(encode(e) + b"\n" for e in zero[:8])),
        append(early, b"".join(lines[:4]) + lines[4][:10]),
        lambda: None,
        lambda: early.rename(late) and None,  # type: ignore[func-returns-value]
        append(late, lines[4][10:] + b"".join(lines[5:])),
        append(file_of(tmp_path, zero[0]), b"".join(encode(e) + b"\n" for e in zero[8:])),
        end(tmp_path),
    ]
    followed = Stage(actions, per_sleep=1).follow(tmp_path)
    assert followed == list(TraceReader(tmp_path).events())
    assert [event for event in followed if event.rank == 1] == one


def test_a_step_is_handed_on_when_it_ends_and_not_only_when_the_run_does(tmp_path: Path) -> None:
    write_manifest(tmp_path, RUNNING)
    events = healthy_run(2)
    ends = [i for i, event in enumerate(events) if event.kind == "step"]
    path = file_of(tmp_path, events[0])
    first = b"".join(encode(e) + b"\n" for e in events[: ends[0] + 1])
    rest = b"".join(encode(e) + b"\n" for e in events[ends[0] + 1 :])
    seen_before_rest: list[int] = []
    delivered: list[Event] = []
    actions = [
        append(path, first),
        lambda: None,
        lambda: seen_before_rest.append(len(delivered)),
        append(path, rest),
        end(tmp_path),
    ]
    for event in Stage(actions, per_sleep=1).reader(tmp_path).events():
        delivered.append(event)
    assert seen_before_rest == [ends[0] + 1]
    assert delivered == events


def test_an_unfinished_step_is_handed_on_after_a_while(tmp_path: Path) -> None:
    write_manifest(tmp_path, RUNNING)
    events = healthy_run(1)[:-1]
    delivered: list[Event] = []
    seen: list[int] = []
    look: Action = lambda: seen.append(len(delivered))  # noqa: E731
    actions = [
        append(file_of(tmp_path, events[0]), b"".join(encode(e) + b"\n" for e in events)),
        look,
        *[lambda: None] * 6,
        look,
        end(tmp_path),
    ]
    stage = Stage(actions, per_sleep=1, tick_s=1.0)
    for event in stage.reader(tmp_path, settle_s=4.0).events():
        delivered.append(event)
    assert seen == [0, len(events)]


def test_a_slow_rank_holds_the_others_back_and_a_dead_one_does_not(tmp_path: Path) -> None:
    runs = {
        rank: TraceBuilder(rank=rank, pid=pid).process(world_size=2).model().optimizer().steps(n)
        for rank, pid, n in ((0, os.getpid(), 4), (1, NOBODY, 2))
    }
    events = {rank: builder.build() for rank, builder in runs.items()}
    for alive, expected in ((True, 2), (False, 4)):
        run = tmp_path / str(alive)
        run.mkdir()
        write_manifest(run, LOCAL)
        for rank, found in events.items():
            data = b"".join(encode(event) + b"\n" for event in found)
            name = event_file_name(rank, os.getpid() if alive or rank == 0 else NOBODY, 0)
            (run / name).write_bytes(data)
        delivered: list[Event] = []
        steps: list[int] = []
        count: Action = lambda d=delivered, s=steps: s.append(  # type: ignore[misc]  # noqa: E731
            sum(1 for e in d if e.kind == "step" and e.rank == 0)
        )
        stage = Stage([*[lambda: None] * 5, count, end(run)], per_sleep=1)
        for event in stage.reader(run).events():
            delivered.append(event)
        # Rank 1 has ended step 1: rank 0's step 2 waits for its step 2, which may yet come.
        assert steps == [expected + alive]
        assert delivered == list(TraceReader(run).events())


def test_a_silent_rank_is_given_up_on(tmp_path: Path) -> None:
    write_manifest(tmp_path, RUNNING)
    pid = os.getpid()
    silent = TraceBuilder(rank=0, pid=pid).process().model().optimizer().steps(1).build()
    busy = TraceBuilder(rank=1, pid=pid).process().model().optimizer().steps(3).build()
    append(file_of(tmp_path, silent[0]), b"".join(encode(e) + b"\n" for e in silent))()
    path = file_of(tmp_path, busy[0])
    delivered: list[Event] = []
    seen: list[int] = []
    actions = [
        append(path, b"".join(encode(e) + b"\n" for e in busy[:-1])),
        *[lambda: None] * 8,
        append(path, encode(busy[-1]) + b"\n"),
        lambda: None,
        lambda: None,
        lambda: seen.append(sum(1 for e in delivered if e.rank == 1 and e.kind == "step")),
        end(tmp_path),
    ]
    stage = Stage(actions, per_sleep=1, tick_s=1.0)
    for event in stage.reader(tmp_path, silent_s=5.0).events():
        delivered.append(event)
    assert seen == [3]
    stalls = [e for e in delivered if isinstance(e, MarkEvent) and e.text == Marks.STALLED]
    assert len(delivered) - len(stalls) == len(silent) + len(busy)
    assert [e.rank for e in stalls] == [0, 1], "each once, however long it stays silent"
    assert all(e.data["silent_s"] >= 5.0 for e in stalls)
    last = [e for e in delivered if e.rank == 0 and e not in stalls][-1]
    assert delivered.index(stalls[0]) > delivered.index(last), "behind what the rank has written"


def test_a_single_rank_is_not_said_to_be_silent(tmp_path: Path) -> None:
    write_manifest(tmp_path, RUNNING)
    alone = TraceBuilder(rank=0, pid=os.getpid()).process().model().optimizer().steps(1).build()
    append(file_of(tmp_path, alone[0]), b"".join(encode(e) + b"\n" for e in alone))()
    stage = Stage([*[lambda: None] * 20, end(tmp_path)], per_sleep=1, tick_s=1.0)
    assert list(stage.reader(tmp_path, silent_s=5.0).events()) == alone


def test_a_run_whose_launcher_died_ends_with_a_note(tmp_path: Path) -> None:
    write_manifest(tmp_path, replace(LOCAL, launcher_pid=NOBODY))
    events = TraceBuilder(pid=NOBODY).process().model().optimizer().steps(2).build()
    append(file_of(tmp_path, events[0]), b"".join(encode(e) + b"\n" for e in events))()
    stage = Stage([], tick_s=1.0)
    reader = stage.reader(tmp_path, dead_after_s=20.0)
    assert list(reader.events()) == events
    assert stage.now_s >= 20.0
    assert len(reader.notes) == 1
    assert "taken to be over" in reader.notes[0]


@pytest.mark.parametrize(
    "facts",
    [
        {"launcher_pid": os.getpid()},
        {"launcher_pid": NOBODY, "created_with": RUNNING.created_with},
    ],
)
def test_a_quiet_run_that_may_be_alive_is_waited_for(
    tmp_path: Path, facts: dict[str, object]
) -> None:
    write_manifest(tmp_path, replace(LOCAL, **facts))  # type: ignore[arg-type]
    events = TraceBuilder(pid=NOBODY).process().model().optimizer().steps(2).build()
    path = file_of(tmp_path, events[0])
    lines = [encode(event) + b"\n" for event in events]
    stage = Stage(
        [
            append(path, b"".join(lines[:5])),
            *[lambda: None] * 100,
            append(path, b"".join(lines[5:])),
            end(tmp_path),
        ],
        per_sleep=1,
        tick_s=1.0,
    )
    reader = stage.reader(tmp_path, dead_after_s=20.0)
    assert list(reader.events()) == events
    assert reader.notes == []


def test_stop_ends_it_with_all_that_is_there(tmp_path: Path) -> None:
    write_manifest(tmp_path, RUNNING)
    events = healthy_run(2)[:-5]
    append(file_of(tmp_path, events[0]), b"".join(encode(e) + b"\n" for e in events))()
    asked = iter([False, False, True])
    reader = TailReader(tmp_path, stop=lambda: next(asked, True), sleep=lambda _: None)
    assert list(reader.events()) == events


def test_stop_knows_what_was_written_before_it(tmp_path: Path) -> None:
    """The launcher ends the manifest and stops the reader, while this is about to look."""
    write_manifest(tmp_path, RUNNING)
    events = healthy_run(2)
    append(file_of(tmp_path, events[0]), b"".join(encode(e) + b"\n" for e in events))()

    def stop() -> bool:
        end(tmp_path)()
        return True

    reader = TailReader(tmp_path, stop=stop, sleep=lambda _: None)
    assert list(reader.events()) == events
    assert reader.manifest == ENDED


def test_torn_and_garbled_lines_are_counted_as_in_a_replay(tmp_path: Path) -> None:
    write_manifest(tmp_path, RUNNING)
    events = healthy_run(2)
    lines = [encode(event) + b"\n" for event in events]
    data = b"".join([*lines[:9], b"garbled\n", *lines[9:-1], lines[-1][:20]])
    path = file_of(tmp_path, events[0])
    stage = Stage([append(path, data[:500]), append(path, data[500:]), end(tmp_path)], per_sleep=1)
    reader = stage.reader(tmp_path)
    followed = list(reader.events())
    replay = TraceReader(tmp_path)
    assert followed == list(replay.events()) == events[:-1]
    assert list(reader.skips) == list(replay.skips)
    assert reader.skipped == 2


@pytest.mark.parametrize("is_completed", [True, False])
@pytest.mark.parametrize("beginning", [0, 30])
def test_lines_whose_copy_shows_its_end_first_are_waited_for(
    tmp_path: Path, beginning: int, is_completed: bool
) -> None:
    write_manifest(tmp_path, RUNNING)
    events = healthy_run(2)
    lines = [encode(event) + b"\n" for event in events]
    before, copy = b"".join(lines[:9]), b"".join(lines[9:20])
    hole = len(copy) - len(lines[18]) - len(lines[19]) - 5 - beginning
    torn = copy[:beginning] + bytes(hole) + copy[beginning + hole :]
    path = file_of(tmp_path, events[0])

    def write(data: bytes) -> Action:
        return lambda: path.write_bytes(before + data + bytes(1000)) and None

    rest = write((copy if is_completed else torn) + b"".join(lines[20:]))
    stage = Stage([write(torn), write(torn), rest, end(tmp_path)], per_sleep=1)
    reader = stage.reader(tmp_path)
    followed = list(reader.events())
    replay = TraceReader(tmp_path)
    assert followed == list(replay.events())
    assert (followed == events) is is_completed
    assert reader.skipped == replay.skipped == (0 if is_completed else 1)
    assert {event.seq for event in followed} >= {0, 8, 18, 19, len(events) - 1}


def test_a_folder_that_is_made_later_is_waited_for(tmp_path: Path) -> None:
    run = tmp_path / "later"
    events = healthy_run(1)

    def make() -> None:
        with TraceWriter(run) as writer:
            for event in events:
                writer.emit(event)

    assert Stage([lambda: None, make], per_sleep=1).follow(run) == events


def test_a_folder_that_is_never_made_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TraceFormatError, match="does not exist"):
        Stage([], tick_s=1.0).follow(tmp_path / "never")


def test_a_folder_of_something_else_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    with pytest.raises(TraceFormatError, match="is not a trace"):
        TailReader(tmp_path)


@pytest.mark.parametrize("most", [1, 5])
def test_little_room_for_held_events_loses_and_repeats_nothing(
    tmp_path: Path, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("traincheck.store.tail._MOST_HELD", 1)
    monkeypatch.setattr("traincheck.store.tail._LEAST_HELD", most)
    source = random.Random(most)
    events = {rank: rank_events(rank, 3, 3, source) for rank in range(3)}
    with TraceWriter(tmp_path, ENDED) as writer:
        for event in [e for rank in events.values() for e in rank]:
            writer.emit(event)
    followed = Stage([]).follow(tmp_path)
    assert sorted(e.header for e in followed) == sorted(
        e.header for rank in events.values() for e in rank
    )
    steps = [event.step for event in followed if event.kind == "step"]
    assert steps == sorted(steps)


def test_a_real_writer_in_another_thread(tmp_path: Path) -> None:
    write_manifest(tmp_path, RUNNING)
    source = random.Random(3)
    actions = [*growth(tmp_path, rank_events(0, 20, 1, source), source), end(tmp_path)]

    def write() -> None:
        for action in actions:
            action()
            time.sleep(0.0005)

    writer = threading.Thread(target=write)
    writer.start()
    followed = list(slowly(TailReader(tmp_path, poll_s=0.002).events()))
    writer.join()
    assert followed == list(TraceReader(tmp_path).events())


def slowly(events: Iterator[Event]) -> Iterator[Event]:
    for number, event in enumerate(events):
        if number % 500 == 0:
            time.sleep(0.001)
        yield event
