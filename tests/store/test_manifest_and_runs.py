"""Reading any manifest; finding runs in folders; writing traces where one can."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import orjson
import pytest

from tests.builders import healthy_run
from traincheck.collect.launch import run_manifest
from traincheck.collect.launch.settings import Settings
from traincheck.errors import OutputError, TraceFormatError
from traincheck.schema.codec import SCHEMA_VERSION
from traincheck.schema.layout import MANIFEST, event_file_name
from traincheck.store.manifest import Manifest, find_runs, read_manifest, write_manifest
from traincheck.store.reader import TraceReader
from traincheck.store.writer import TraceWriter

NOBODY = 2**22 + 1  # beyond the largest process id of Linux


def write(directory: Path, *, steps: int = 1) -> Path:
    with TraceWriter(directory) as writer:
        for event in healthy_run(steps):
            writer.emit(event)
    return directory


def test_what_the_launcher_writes_is_read_whole(tmp_path: Path) -> None:
    settings = Settings(directory=str(tmp_path), run_id="mlp-1", every=5)
    first = run_manifest.started(settings, ["python", "train.py"], {"OMP_NUM_THREADS": "1"})
    run_manifest.write(tmp_path, first)
    begun, notes = read_manifest(tmp_path)
    assert begun is not None
    assert notes == []
    assert (begun.ended, begun.exit_status, begun.processes) == (None, None, ())
    run_manifest.write(tmp_path, run_manifest.ended(first, write(tmp_path / "x"), -9))
    found, notes = read_manifest(tmp_path)
    assert found is not None
    assert notes == []
    written = orjson.loads((tmp_path / MANIFEST).read_bytes())
    assert orjson.loads(orjson.dumps(asdict(found))) == written, (
        "a field is not read, or not written"
    )
    assert (found.run_id, found.signal, found.exit_status) == ("mlp-1", "SIGKILL", 137)
    assert found.hostname
    assert found.ended


@pytest.mark.parametrize(
    ("is_alive", "said"),
    [(True, "has just started, and nothing is recorded yet"), (False, "no event files")],
)
def test_a_run_that_has_just_started_is_told_from_one_that_recorded_nothing(
    tmp_path: Path, is_alive: bool, said: str
) -> None:
    host, pid = {"hostname": platform.node()}, os.getpid() if is_alive else NOBODY
    write_manifest(tmp_path, Manifest(run_id="x", launcher_pid=pid, created_with=host))
    with pytest.raises(TraceFormatError, match=said):
        TraceReader(tmp_path)


def test_what_is_missing_at_the_end_of_a_run_is_told(tmp_path: Path) -> None:
    run = write(tmp_path / "run", steps=3)
    settings = Settings(directory=str(run), run_id="mlp-1")
    first = run_manifest.started(settings, ["python", "train.py"], {})
    run_manifest.write(run, first)
    for pid, host, said in (
        (os.getpid(), platform.node(), "the run is still going on"),
        (NOBODY, platform.node(), "the launcher was killed before the run ended; "),
        (os.getpid(), "elsewhere", "the run has not ended, or its launcher was killed; "),
    ):
        made = {**first["created_with"], "hostname": host}
        run_manifest.write(run, {**first, "launcher_pid": pid, "created_with": made})
        (note,) = TraceReader(run).notes
        assert note.startswith(said)
    run_manifest.write(run, run_manifest.ended(first, run, 0))
    assert TraceReader(run).notes == []
    path = next(run.glob("events-*"))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-2]))  # at the end of a line: nothing in it is torn
    (note,) = TraceReader(run).notes
    assert f"{len(lines[-1] + lines[-2]):,} bytes of the events of process" in note
    path.write_bytes(b"".join(lines * 2))  # what outlives its launcher writes on
    assert TraceReader(run).notes == []


def test_a_field_of_another_form_is_left_out_and_named(tmp_path: Path) -> None:
    record = {"schema_version": SCHEMA_VERSION, "run_id": ["x"], "cwd": "/home", "new": 1}
    (tmp_path / MANIFEST).write_bytes(orjson.dumps(record))
    found, notes = read_manifest(tmp_path)
    assert found == Manifest(cwd="/home")
    assert len(notes) == 1
    assert "'run_id'" in notes[0]


def test_a_manifest_survives_being_written(tmp_path: Path) -> None:
    manifest = Manifest(run_id="a", command=("python", "x"), notes=("one",), exit_status=3)
    write_manifest(tmp_path, manifest)
    assert read_manifest(tmp_path) == (manifest, [])
    assert [path.name for path in tmp_path.iterdir()] == [MANIFEST]


def test_runs_are_found_in_folders_of_runs(tmp_path: Path) -> None:
    runs = [write(tmp_path / name) for name in ("b", "a", "seeds/1")]
    (tmp_path / "notes").mkdir()
    (tmp_path / "readme.txt").touch()
    write(tmp_path / "far" / "too" / "deep")
    assert find_runs(tmp_path) == sorted(runs)
    assert find_runs(str(runs[0])) == [runs[0]]


def test_a_run_without_a_manifest_is_found(tmp_path: Path) -> None:
    run = write(tmp_path / "run")
    (run / MANIFEST).unlink()
    assert find_runs(tmp_path) == [run]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.touch(), "is a file"),
        (lambda path: path.mkdir(), "has no run: it is empty"),
        (lambda path: (path / "sub").mkdir(parents=True), "has no run: it holds sub/"),
    ],
)
def test_without_a_run_it_is_told_what_is_there(
    tmp_path: Path, make: Callable[[Path], object], message: str
) -> None:
    path = tmp_path / "traces"
    make(path)
    with pytest.raises(TraceFormatError, match=message) as caught:
        find_runs(path)
    assert str(path) in caught.value.message
    assert caught.value.fix


def test_packed_event_files_are_told_to_be_unpacked(tmp_path: Path) -> None:
    (tmp_path / f"{event_file_name(0, 1, 0)}.gz").touch()
    with pytest.raises(TraceFormatError, match="has no run") as caught:
        find_runs(tmp_path)
    assert "unpack events-r0-p1-t0.jsonl.gz" in caught.value.fix


def test_the_writer_refuses_a_file_and_a_folder_with_a_trace(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OutputError, match="cannot write the trace"):
            TraceWriter(path)
    run = write(tmp_path / "run")
    with pytest.raises(OutputError, match="already holds a trace"):
        TraceWriter(run)
    assert list(TraceReader(run).events()) == healthy_run(1)


def test_the_writer_ends_the_manifest(tmp_path: Path) -> None:
    run = tmp_path / "run"
    writer = TraceWriter(run)
    begun, _ = read_manifest(run)
    assert begun is not None
    assert begun.ended is None
    for event in healthy_run(1):
        writer.emit(event)
    writer.close()
    ended, _ = read_manifest(run)
    assert ended is not None
    assert ended.ended
    assert [process["pid"] for process in ended.processes] == [1000]


def test_a_full_disk_is_an_error_with_the_path(small_disk: Path) -> None:
    with pytest.raises(OutputError, match="No space left") as caught:
        write(small_disk / "run", steps=50)
    assert str(small_disk / "run") in caught.value.message
