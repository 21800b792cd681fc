"""Asking a run of this process for what is new gives what a replay gives, whatever is dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.builders import healthy_run
from traincheck.schema.codec import encode
from traincheck.schema.events import Event
from traincheck.schema.layout import event_file_name
from traincheck.store.reader import TraceReader
from traincheck.store.tail import PollReader

EVENTS = healthy_run(12)


def path_of(run: Path, event: Event) -> Path:
    _, pid, thread = event.stream.replace("p", "-").replace("t", "").split("-")
    return run / event_file_name(event.rank, int(pid), int(thread))


def append(run: Path, events: Iterable[Event]) -> None:
    for event in events:
        with path_of(run, event).open("ab") as file:
            file.write(encode(event) + b"\n")


def emptying(run: Path) -> Callable[[int], bool]:
    """What a process does that writes the file."""

    def empty(size: int) -> bool:
        path = path_of(run, EVENTS[0])
        is_read = path.stat().st_size == size
        if is_read:
            path.write_bytes(b"")
        return is_read

    return empty


@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.parametrize("piece", [1, 7, 50, 1000])
def test_pieces_give_the_whole(tmp_path: Path, piece: int, drops: bool) -> None:
    kept, polled = tmp_path / "kept", tmp_path / "polled"
    kept.mkdir()
    polled.mkdir()
    append(kept, EVENTS)
    reader = PollReader(polled)
    found: list[Event] = []
    for start in range(0, len(EVENTS), piece):
        append(polled, EVENTS[start : start + piece])
        found += reader.new()
        if drops:
            reader.drop(EVENTS[0].stream, 1, emptying(polled))
    found += reader.rest()
    assert found == list(TraceReader(kept).events())
    size = path_of(polled, EVENTS[0]).stat().st_size
    assert (size == 0) is drops
    assert reader.skipped == 0


def test_a_step_is_given_when_it_has_ended(tmp_path: Path) -> None:
    ends = [n for n, event in enumerate(EVENTS) if event.kind == "step"]
    reader = PollReader(tmp_path)
    append(tmp_path, EVENTS[: ends[0]])
    assert list(reader.new()) == []
    append(tmp_path, EVENTS[ends[0] : ends[1]])
    assert [event.step for event in reader.new() if event.kind == "step"] == [0]
    assert list(reader.new()) == []


def test_a_small_file_is_not_emptied(tmp_path: Path) -> None:
    append(tmp_path, EVENTS)
    reader = PollReader(tmp_path)
    list(reader.new())
    reader.drop(EVENTS[0].stream, 1 << 30, emptying(tmp_path))
    reader.drop("p1-t7", 1, emptying(tmp_path))
    assert path_of(tmp_path, EVENTS[0]).stat().st_size


def test_a_line_that_is_being_copied_is_waited_for(tmp_path: Path) -> None:
    """Zeros are space for the next lines, or bytes of the last one that are not copied yet."""
    path = path_of(tmp_path, EVENTS[0])
    lines = [encode(event) + b"\n" for event in EVENTS if event.kind == "step"]
    data = b"".join(
        line.replace(b'"n":%d' % e.seq, b'"n":%d' % n)
        for n, (line, e) in enumerate(zip(lines, (e for e in EVENTS if e.kind == "step")))
    )
    reader = PollReader(tmp_path)
    found: list[Event] = []
    for at in range(0, len(data), 61):
        copied, feed, _ = data[at + 3 : at + 23].partition(b"\n")
        # Also where the end of a line comes before its middle
        path.write_bytes(data[:at] + bytes(3) + copied + feed + bytes(500))
        found += reader.new()
    path.write_bytes(data + bytes(99))
    found += reader.rest()
    assert [event.step for event in found] == list(range(len(lines)))
    assert reader.skipped == 0
