"""Replaying a run: what comes out, what is skipped and why, and what is refused with which fix."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.builders import MLP, TraceBuilder, healthy_run
from traincheck.errors import TraceFormatError
from traincheck.schema.codec import encode
from traincheck.schema.events import Event, MarkEvent
from traincheck.schema.layout import MANIFEST, event_file_name
from traincheck.store import lines
from traincheck.store.manifest import Manifest
from traincheck.store.reader import TraceReader
from traincheck.store.writer import TraceWriter

GOOD = encode(MarkEvent(0, 1, 0, "train", 0, "p1-t0", text="x"))


def write(directory: Path, events: list[Event]) -> Path:
    with TraceWriter(directory) as writer:
        for event in events:
            writer.emit(event)
    return directory


def test_a_run_is_replayed_as_it_was_written(tmp_path: Path) -> None:
    events = healthy_run(4, eval_every=2)
    reader = TraceReader(write(tmp_path / "run", events))
    assert list(reader.events()) == events
    assert list(reader.events()) == events, "a second reading gives the same"
    assert (reader.skipped, reader.ranks, reader.notes) == (0, [0], [])
    assert reader.bytes_read == reader.bytes_total > 0


def test_processes_tell_about_themselves(tmp_path: Path) -> None:
    main = TraceBuilder(rank=1, pid=7).process(argv0="a.py").model().optimizer().steps(1).build()
    worker = TraceBuilder(rank=1, pid=8, worker=True).process(worker=True).build()
    thread = TraceBuilder(rank=1, pid=7, thread=1).process(argv0="a.py").build()
    reader = TraceReader(write(tmp_path / "run", main + worker + thread))
    found = [(p.rank, p.pid, p.is_worker, len(p.files)) for p in reader.processes]
    assert found == [(1, 7, False, 2), (1, 8, True, 1)]
    assert reader.processes[0].facts["argv0"] == "a.py"


@pytest.mark.parametrize("chunk", [1, 7, 64, 1 << 16])
def test_the_size_of_the_pieces_read_does_not_matter(
    tmp_path: Path, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = healthy_run(1)
    run = write(tmp_path / "run", events)
    monkeypatch.setattr("traincheck.store.reader.CHUNK_BYTES", chunk)
    monkeypatch.setattr("traincheck.store.reader._MIN_CHUNK_BYTES", chunk)
    assert list(TraceReader(run).events()) == events


BAD_LINES = [
    (GOOD[:-9], "the last line is torn", True),
    (b"", "blank", False),
    (b"\x00\x00\x00\x00", "a torn line", False),
    (GOOD[:30] + bytes(9) + GOOD[39:], "a torn line", False),
    (GOOD[:30] + bytes(9000), "the last line is torn", True),
    (b"\xff\xfe{}", "not JSON", False),
    (GOOD[20:], "not JSON", False),
    (GOOD[:20], "not JSON", False),
    (b"[1,2]", "a JSON list, not an object", False),
    (b"3", "a JSON int, not an object", False),
    (b"{}", "field 'k' is missing", False),
    (b'{"k":"nova","n":1,"t":1,"s":0,"g":"train"}', "unknown kind 'nova'", False),
    (b'{"k":["mark"],"n":1,"t":1,"s":0,"g":"train"}', "unknown kind ['mark']", False),
    (b'{"k":"mark","t":1,"s":0,"g":"train"}', "missing required field `n`", False),
    (
        b'{"k":"mark","n":1,"t":"1","s":0,"g":"train"}',
        "Expected `int`, got `str` - at `$.t`",
        False,
    ),
    (b"[" * 5000, "not JSON", False),
]


@pytest.mark.parametrize(("bad", "reason", "is_last"), BAD_LINES)
def test_a_bad_line_is_skipped_counted_and_explained(
    tmp_path: Path, bad: bytes, reason: str, is_last: bool
) -> None:
    path = tmp_path / event_file_name(0, 1, 0)
    after = b"" if is_last else b"\n" + GOOD + b"\n"
    path.write_bytes(GOOD + b"\n" + bad + after)
    reader = TraceReader(tmp_path)
    assert len(list(reader.events())) == (1 if is_last else 2)
    assert reader.skipped == 1
    skip = reader.skips[0]
    assert (skip.path, skip.line) == (path, 2)
    assert reason in skip.reason


def test_a_last_line_that_only_lacks_its_line_feed_counts(tmp_path: Path) -> None:
    (tmp_path / event_file_name(0, 1, 0)).write_bytes(GOOD + b"\n" + GOOD)
    reader = TraceReader(tmp_path)
    assert len(list(reader.events())) == 2
    assert reader.skipped == 0


@pytest.mark.parametrize("ending", [b"\n" + GOOD + b"\n", b""])
def test_an_endless_line_does_not_fill_memory(
    tmp_path: Path, ending: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 1 << 18)
    path = tmp_path / event_file_name(0, 1, 0)
    path.write_bytes(GOOD + b"\n" + b"x" * (1 << 21) + ending)
    reader = TraceReader(tmp_path)
    found = len(list(reader.events()))
    assert found == 1 + bool(ending)
    assert [(s.line, "longer than" in s.reason) for s in reader.skips] == [(2, True)]


def test_line_numbers_are_right_when_lines_are_skipped(tmp_path: Path) -> None:
    run = write(tmp_path / "run", healthy_run(2))
    path = next(run.glob("events-*"))
    content = path.read_bytes().splitlines()
    content.insert(30, b"garbled")
    content.insert(40, b"garbled too")
    path.write_bytes(b"\n".join(content) + b"\n")
    reader = TraceReader(run)
    list(reader.events())
    assert [skip.line for skip in reader.skips] == [31, 41]


def steps_and_marks(reader: TraceReader) -> list[tuple[int, bool] | tuple[str, Any]]:
    """Step and whether it was recorded; text and data of marks about what is missing."""
    return [
        (event.step or 0, event.recorded) if event.kind == "step" else (event.text, event.data)
        for event in reader.events()
        if event.kind == "step" or (event.kind == "mark" and event.text == "dropped")
    ]


def cut(run: Path, start: int, stop: int) -> Path:
    path = next(run.glob("events-*"))
    content = path.read_bytes().splitlines(keepends=True)
    del content[start:stop]
    path.write_bytes(b"".join(content))
    return run


def test_missing_numbers_are_a_gap_and_spoil_their_steps_only(tmp_path: Path) -> None:
    events = healthy_run(5)
    ends = [i for i, event in enumerate(events) if event.kind == "step"]
    run = cut(write(tmp_path / "run", events), ends[1] + 3, ends[2] + 3)
    whole = [(step, True) for step in range(5)]
    gap = ("dropped", {"records": ends[2] - ends[1]})
    assert steps_and_marks(TraceReader(run)) == [*whole[:2], gap, (3, False), whole[4]]
    assert TraceReader(run).skipped == 0


@pytest.mark.parametrize("change", ["twice", "backwards"])
def test_what_comes_twice_or_too_late_is_skipped(tmp_path: Path, change: str) -> None:
    events = healthy_run(5)
    ends = [i for i, event in enumerate(events) if event.kind == "step"]
    run = write(tmp_path / "run", events)
    path = next(run.glob("events-*"))
    lines = path.read_bytes().splitlines(keepends=True)
    first, last = ends[1] + 3, ends[2] + 3
    part = lines[first:last]
    lines[first:last] = part * 2 if change == "twice" else part[::-1]
    path.write_bytes(b"".join(lines))
    reader = TraceReader(run)
    found = steps_and_marks(reader)
    if change == "twice":
        assert found == [(step, True) for step in range(5)]
        assert reader.skipped == len(part)
    else:  # the first of them is the last: what is between is missing
        gap = ("dropped", {"records": len(part) - 1})
        assert found == [(0, True), (1, True), gap, (3, False), (4, True)]
        assert reader.skipped == len(part) - 1


def test_a_program_that_replaced_itself_begins_anew(tmp_path: Path) -> None:
    """As ``os.exec`` does: the same process, the same file."""
    run = write(tmp_path / "run", healthy_run(2))
    path = next(run.glob("events-*"))
    path.write_bytes(path.read_bytes() * 2)
    reader = TraceReader(run)
    assert [recorded for _, recorded in steps_and_marks(reader)] == [True] * 4
    assert reader.skipped == 0


@pytest.mark.parametrize("chunk", [64, 1 << 16])
def test_a_garbled_line_is_a_gap_too(
    tmp_path: Path, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("traincheck.store.reader.CHUNK_BYTES", chunk)
    monkeypatch.setattr("traincheck.store.reader._MIN_CHUNK_BYTES", chunk)
    events = healthy_run(2)
    run = write(tmp_path / "run", events)
    path = next(run.glob("events-*"))
    content = path.read_bytes().splitlines()
    last = len(content) - 3  # of the last step
    path.write_bytes(b"\n".join([*content[:last], b"garbled", *content[last + 1 :]]) + b"\n")
    reader = TraceReader(run)
    found = [(0, True), ("dropped", {"records": 1}), (1, False)]
    assert steps_and_marks(reader) == found
    assert reader.skipped == 1


def test_an_event_of_a_newer_version_is_no_gap(tmp_path: Path) -> None:
    events = healthy_run(2)
    run = write(tmp_path / "run", events)
    path = next(run.glob("events-*"))
    content = path.read_bytes().splitlines()
    newer_kind = orjson.loads(content[-3]) | {"k": "nova"}
    content[-3] = orjson.dumps(newer_kind)
    path.write_bytes(b"\n".join(content) + b"\n")
    reader = TraceReader(run)
    assert steps_and_marks(reader) == [(0, True), (1, True)]
    assert reader.skipped == 1


def test_a_lost_beginning_does_not_hide_what_was_recorded(tmp_path: Path) -> None:
    """Else a selective trace would pass for a full one, and lack all that was not asked for."""
    needs = {"calls": [], "states": [], "kinds": ["step"], "exact": False, "stats": []}
    manifest = Manifest(run_id="r", settings={"level": "default", "needs": needs})
    with TraceWriter(tmp_path / "run", manifest) as writer:
        for event in healthy_run(2):
            writer.emit(event)
    first, second, *_ = TraceReader(cut(tmp_path / "run", 0, 2)).events()
    assert isinstance(first, MarkEvent)
    assert (first.text, first.data) == ("process", {"recorded": needs})
    assert isinstance(second, MarkEvent)
    assert (second.text, second.data) == ("dropped", {"records": 2})


def foreign(path: Path) -> None:
    (path / "train.py").write_text("")


def empty(path: Path) -> None:
    """An empty folder."""


def folder_of_runs(path: Path) -> None:
    for name in ("a", "b"):
        write(path / name, healthy_run(1))


def newer(path: Path) -> None:
    write(path, healthy_run(1))
    manifest = orjson.loads((path / MANIFEST).read_bytes())
    (path / MANIFEST).write_bytes(orjson.dumps({**manifest, "schema_version": 7}))


def nothing_recorded(path: Path) -> None:
    write(path, [])


def empty_file(path: Path) -> None:
    (path / event_file_name(0, 1, 0)).touch()


def all_bad(path: Path) -> None:
    (path / event_file_name(0, 1, 0)).write_bytes(b"epoch 1 loss 0.3\nepoch 2 loss 0.2\n")


def renamed_by_hand(path: Path) -> None:
    (path / "events-mine.jsonl").write_bytes(GOOD + b"\n")


REFUSED: list[tuple[Callable[[Path], None], str, str]] = [
    (foreign, "is not a trace: it holds train.py", "traincheck-collect"),
    (empty, "is not a trace: it is empty", "traincheck-collect"),
    (folder_of_runs, "is a folder of runs, not a run: a, b", "name one of them"),
    (newer, "has schema version 7; this traincheck reads up to 1", "a later one"),
    (nothing_recorded, "has a manifest but no event files", "imports torch"),
    (empty_file, "are empty", "record the run again"),
    (all_bad, "none of 2 lines can be read, first events-r0-p1-t0.jsonl:1", "record"),
    (renamed_by_hand, "none is named", "do not rename"),
]


@pytest.mark.parametrize(("make", "message", "fix"), REFUSED)
def test_what_is_no_run_is_refused_with_its_path_and_a_fix(
    tmp_path: Path, make: Callable[[Path], None], message: str, fix: str
) -> None:
    make(tmp_path)
    with pytest.raises(TraceFormatError) as caught:
        list(TraceReader(tmp_path).events())
    assert str(tmp_path) in caught.value.message
    assert message in caught.value.message
    assert fix in (caught.value.fix or "")


def test_a_missing_path_and_a_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceFormatError, match="does not exist"):
        TraceReader(tmp_path / "nope")
    run = write(tmp_path / "run", healthy_run(1))
    with pytest.raises(TraceFormatError, match="is a file") as caught:
        TraceReader(run / MANIFEST)
    assert str(run) in (caught.value.fix or "")


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b'{"name": "pwa"}'])
def test_without_a_usable_manifest_a_run_is_still_read(
    tmp_path: Path, content: bytes | None
) -> None:
    events = healthy_run(2)
    run = write(tmp_path / "run", events)
    if content is None:
        (run / MANIFEST).unlink()
    else:
        (run / MANIFEST).write_bytes(content)
    reader = TraceReader(run)
    assert reader.manifest is None
    assert len(reader.notes) == 1
    assert str(run / MANIFEST) in reader.notes[0]
    assert list(reader.events()) == events


ENDLESS_WRITER = """
import itertools, os, sys
line = sys.argv[2].encode() + b"\\n"
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for number in itertools.count():
    # In pieces, so that the kill often falls inside a line.
    data = line.replace(b'"n":0', b'"n":%d' % number)
    os.write(file, data[:30])
    os.write(file, data[30:])
    if number == 200:
        print("ready", flush=True)
"""


def test_after_a_kill_in_mid_write_nothing_complete_is_lost(tmp_path: Path) -> None:
    path = tmp_path / event_file_name(0, 1, 0)
    command = [sys.executable, "-c", ENDLESS_WRITER, str(path), GOOD.decode()]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    content = path.read_bytes()
    reader = TraceReader(tmp_path)
    numbers = [event.seq for event in reader.events()]
    assert numbers == list(range(content.count(b"\n")))
    assert len(numbers) >= 200
    assert reader.skipped == (not content.endswith(b"\n"))


def peak_of(run: Path) -> int:
    tracemalloc.start()
    try:
        assert sum(1 for _ in TraceReader(run).events()) > 0
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def long_run(rank: int, steps: int) -> Iterator[Event]:
    builder = TraceBuilder(rank=rank).process().model("Net", MLP).optimizer()
    for _ in range(steps):
        builder.step()
        yield from builder.take()


def test_memory_does_not_grow_with_the_length_of_a_run(tmp_path: Path) -> None:
    peaks = []
    for steps in (60, 600):
        run = tmp_path / str(steps)
        with TraceWriter(run) as writer:
            for rank in (0, 1):
                for event in long_run(rank, steps):
                    writer.emit(event)
        peaks.append(peak_of(run))
    assert peaks[1] < 2 * peaks[0]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    run = write(tmp_path / "run", healthy_run(1))
    path = next(run.glob("events-*"))
    path.chmod(0)
    with pytest.raises(TraceFormatError, match="cannot be read") as caught:
        list(TraceReader(run).events())
    assert str(path) in caught.value.message
