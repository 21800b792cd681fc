"""A run that is checked while it is recorded takes little room, and what is kept is a trace."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.builders import MLP, TraceBuilder
from tests.checking import report_of
from traincheck.schema.codec import encode
from traincheck.schema.events import Event
from traincheck.schema.layout import EVENT_GLOB, event_file_name
from traincheck.store import thin
from traincheck.store.manifest import Manifest, read_manifest, write_manifest
from traincheck.store.reader import TraceReader
from traincheck.store.tail import TailReader
from traincheck.store.thin import FIRST_STEPS, Gap, record_gap

LIMIT = 800_000
NOBODY = 2**22 + 1  # beyond the largest process id of Linux
STEPS = 300
RUNNING = Manifest(run_id="live", created_with={"hostname": "another-machine"})


def run_of(rank: int = 0, *, broken_from: int = STEPS) -> list[Event]:
    builder = TraceBuilder(rank=rank, pid=rank + 1).process(world_size=2 if rank else 1)
    builder.model("Net", MLP).optimizer()
    for step in range(STEPS):
        builder.step(omit={"zero_grad"} if step >= broken_from else ())
    return builder.build()


def room(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.glob(EVENT_GLOB))


class Written:
    """Writes runs as their processes would, a few events between two looks of the reader."""

    def __init__(self, folder: Path, *runs: list[Event], each: int = 400) -> None:
        self._folder = folder
        self._left = [list(run) for run in runs]
        self._each = each
        self.most_room = 0
        write_manifest(folder, RUNNING)

    def sleep(self, _: float) -> None:
        self.most_room = max(self.most_room, room(self._folder))
        for run in self._left:
            for event in run[: self._each]:
                name = event_file_name(event.rank, int(event.stream[1:].split("-")[0]), 0)
                with (self._folder / name).open("ab") as file:
                    file.write(encode(event) + b"\n")
            del run[: self._each]
        if not any(self._left):
            write_manifest(self._folder, Manifest(ended="2026-01-01T00:00:00+00:00"))

    def followed(self, limit: int | None = LIMIT) -> tuple[TailReader, list[Event]]:
        reader = TailReader(self._folder, limit=limit, sleep=self.sleep)
        return reader, list(reader.events())


def steps_in(folder: Path, rank: int = 0) -> list[int]:
    events = TraceReader(folder).events()
    return [e.step for e in events if e.kind == "step" and e.rank == rank and e.step is not None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run = tmp_path / "run"
    run.mkdir()
    return run


def test_all_is_delivered_and_little_is_there_at_any_time(folder: Path) -> None:
    events = run_of()
    written = Written(folder, events)
    reader, found = written.followed()
    assert found == events
    assert sum(len(encode(event)) for event in events) > 3 * LIMIT
    assert written.most_room < LIMIT
    assert reader.skipped == 0
    assert not reader.notes


def test_without_a_limit_all_is_kept(folder: Path) -> None:
    reader, found = Written(folder, run_of()).followed(limit=None)
    assert reader.compact() is None
    assert list(TraceReader(folder).events()) == found


def test_a_run_below_its_limit_is_left_alone(folder: Path) -> None:
    reader, found = Written(folder, run_of()).followed(limit=100 * LIMIT)
    assert reader.compact() is None
    assert list(TraceReader(folder).events()) == found


def test_what_is_kept_is_a_trace_with_a_gap(folder: Path) -> None:
    """Its first and last steps are whole; a check of it finds what is there, and nothing else."""
    reader, _ = Written(folder, run_of(broken_from=STEPS - 10)).followed()
    gap = reader.compact()
    assert gap is not None
    assert gap.first == FIRST_STEPS
    assert gap.last < STEPS - 12
    assert room(folder) < LIMIT
    (path,) = folder.glob(EVENT_GLOB)
    assert b"\0" not in path.read_bytes()
    assert steps_in(folder) == [*range(FIRST_STEPS), *range(gap.last + 1, STEPS)]
    report = report_of(list(TraceReader(folder).events()))
    assert [(f.code, f.first_step) for f in report.findings] == [("TC201", STEPS - 10)]
    assert any("events were lost" in note for note in report.notes)


def test_ranks_keep_the_same_steps(folder: Path) -> None:
    long = run_of(1)
    written = Written(folder, run_of(0), long)
    reader, found = written.followed(2 * LIMIT)
    assert [e for e in found if e.rank == 1] == long
    gap = reader.compact()
    assert gap is not None
    assert steps_in(folder) == steps_in(folder, 1)
    assert written.most_room < 2 * LIMIT
    assert not report_of(list(TraceReader(folder).events())).findings


def test_the_files_can_be_read_while_they_have_holes(folder: Path) -> None:
    """As after the launcher was killed."""
    Written(folder, run_of()).followed()
    reader = TraceReader(folder)
    found = [e for e in reader.events() if e.kind == "step"]
    assert reader.skipped == 0
    numbers = [e.step for e in found if e.step is not None]
    assert numbers == sorted(numbers)
    assert numbers[0] == 0
    assert numbers[-1] == STEPS - 1
    assert len(numbers) < STEPS // 2
    assert not report_of(list(TraceReader(folder).events())).findings


def test_a_process_that_holds_back_the_others_loses_nothing(folder: Path) -> None:
    """One rank writes all before the other begins: nothing of it was checked until then."""
    first, second = run_of(0), run_of(1)
    name = folder / event_file_name(1, 2, 0)
    name.write_bytes(b"".join(encode(event) + b"\n" for event in second))
    reader, found = Written(folder, first).followed()
    assert [e for e in found if e.rank == 1] == second
    assert [e for e in found if e.rank == 0] == first
    assert reader.skipped == 0


@pytest.mark.parametrize("pid", [NOBODY, os.getpid()], ids=["dead", "alive"])
def test_files_of_loader_workers_go_when_they_are_used_up(folder: Path, pid: int) -> None:
    """Each epoch may have its own."""
    builder = TraceBuilder(worker=True, pid=pid).process(worker=pid != NOBODY)
    for _ in range(20):
        builder.batch()
    worker = builder.build()
    _, found = Written(folder, run_of(), worker).followed()
    assert [event for event in found if event.stream == worker[0].stream] == worker
    assert (folder / event_file_name(0, pid, 0)).exists() is (pid != NOBODY)


def test_the_manifest_says_what_is_missing(folder: Path) -> None:
    path = folder / "events-r0-p1-t0.jsonl"
    path.write_bytes(b"x" * 10)
    process = {"rank": 0, "pid": 1, "files": [path.name], "bytes": 5000}
    write_manifest(folder, Manifest(ended="2026-01-01T00:00:00+00:00", processes=(process,)))
    note = record_gap(folder, Gap(4, 90_000), "100 MB")
    manifest, _ = read_manifest(folder)
    assert manifest is not None
    assert manifest.notes == (note,)
    assert note.startswith("steps 4 to 90,000 were checked during the run")
    assert manifest.processes[0]["bytes"] == 10


def test_where_files_have_no_holes_all_is_kept_and_told_once(folder: Path, monkeypatch) -> None:
    monkeypatch.setattr(thin.Thinner, "_punch", _refused)
    reader, found = Written(folder, run_of()).followed()
    assert len(reader.notes) == 1
    assert "cannot be rewritten" in reader.notes[0]
    assert os.strerror(errno.EOPNOTSUPP) in reader.notes[0]
    assert len(found) == len(run_of())


def _refused(self: thin.Thinner, path: Path, start: int, end: int) -> bool:
    self._give_up(path, os.strerror(errno.EOPNOTSUPP))
    return False
