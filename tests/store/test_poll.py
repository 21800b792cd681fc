"""Asking a run of this process for what is new gives what a replay gives, whatever is dropped."""

from __future__ import annotations

from collections.abc import Iterable
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
            reader.drop(EVENTS[0].stream, 1)
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
    reader.drop(EVENTS[0].stream, 1 << 30)
    reader.drop("p1-t7", 1)
    assert path_of(tmp_path, EVENTS[0]).stat().st_size
