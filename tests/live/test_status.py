"""Where a run stands, from a few kilobytes of its files."""

from __future__ import annotations

import os
import platform
from dataclasses import replace
from pathlib import Path

import pytest

from tests.builders import TraceBuilder, healthy_run
from tests.live.runs import BROKEN, NOBODY, checked_by, write
from traincheck.live.checked import Checked, read_checked, write_checked
from traincheck.live.status import last_event, run_status, status_json, status_line
from traincheck.report.json_report import report_json
from traincheck.schema.layout import CHECKED
from traincheck.store.manifest import Manifest

HERE = {"hostname": platform.node()}
ENDED = Manifest(started="2026-01-01T00:00:00Z", ended="2026-01-01T00:01:00Z", exit_status=0)


@pytest.mark.parametrize(
    ("manifest", "pid", "state"),
    [
        (ENDED, NOBODY, "ended"),
        (replace(ENDED, exit_status=3), NOBODY, "failed"),
        (replace(ENDED, exit_status=137, signal="SIGKILL"), NOBODY, "failed"),
        (Manifest(launcher_pid=os.getpid(), created_with=HERE), NOBODY, "running"),
        (Manifest(launcher_pid=NOBODY, created_with=HERE), os.getpid(), "running"),
        (Manifest(launcher_pid=NOBODY, created_with=HERE), NOBODY, "lost"),
        (Manifest(launcher_pid=NOBODY, created_with={"hostname": "far"}), NOBODY, "unknown"),
        (None, NOBODY, "lost"),
    ],
    ids=range(8),  # the number of this process differs between workers
)
def test_the_state_follows_from_manifest_and_processes(
    tmp_path: Path, manifest: Manifest | None, pid: int, state: str
) -> None:
    events = TraceBuilder(pid=pid).process().model().optimizer().steps(1).build()
    assert run_status(write(tmp_path / "run", events, manifest)).state == state


def test_a_folder_that_is_gone_is_removed(tmp_path: Path) -> None:
    assert run_status(tmp_path / "gone").state == "removed"


def test_the_step_is_the_latest_of_all_ranks(tmp_path: Path) -> None:
    events = [
        event
        for rank, count in ((0, 3), (1, 5))
        for event in TraceBuilder(rank=rank).process().model().optimizer().steps(count).build()
    ]
    found = run_status(write(tmp_path / "run", events))
    assert (found.step, dict(found.ranks)) == (4, {0: 2, 1: 4})


def test_the_last_event_is_found_behind_torn_and_long_lines(tmp_path: Path) -> None:
    run = write(tmp_path / "run", healthy_run(3))
    path = run / "events-r0-p1000-t0.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"k":"warning","text":"' + b"x" * 300_000)
    found = last_event(path, 0, "p1000-t0")
    assert found is not None
    assert (found.kind, found.step) == ("step", 2)
    path.write_bytes(whole + b'{"k":"warning","text":"' + b"x" * 300_000 + b'"}\n')
    found = last_event(path, 0, "p1000-t0")
    assert found is not None
    assert found.step == 2


def test_a_file_without_events_has_no_last_one(tmp_path: Path) -> None:
    path = tmp_path / "events-r0-p1-t0.jsonl"
    for content in (b"", b"no event\n", b'{"k":"st'):
        path.write_bytes(content)
        assert last_event(path, 0, "p1-t0") is None


def test_the_line_has_all_values(tmp_path: Path) -> None:
    run = write(tmp_path / "run", BROKEN, replace(ENDED, exit_status=3))
    checked_by(BROKEN, run)
    values = dict(pair.split("=", 1) for pair in status_line(run_status(run)).split())
    assert float(values.pop("idle_s")) >= 0
    assert values == {
        "state": "failed",
        "step": "3",
        "checked": "3",
        "findings": "1",
        "observations": "0",
        "advice": "0",
        "errors": "1",
        "codes": "TC201",
        "ranks": "1",
        "exit_status": "3",
        "run": str(run),
    }


def test_what_is_not_known_is_a_dash(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    line = status_line(run_status(tmp_path / "run"))
    assert (
        "step=- checked=- findings=- observations=- advice=- errors=- codes=- ranks=0 idle_s=-"
        in line
    )


def test_numbers_and_findings_are_those_of_the_report(tmp_path: Path) -> None:
    run = write(tmp_path / "run", BROKEN)
    engine, _ = checked_by(BROKEN, run)
    told = report_json(engine.so_far())
    found = status_json(run_status(run))
    assert found["summary"] == told["summary"]
    assert len(found["findings"]) == len(told["findings"]) == 1
    one, other = found["findings"][0], told["findings"][0]
    assert one == {name: other[name] for name in one}
    assert {"code", "title", "message", "fix", "where", "first_step"} <= one.keys()


def test_the_verdict_counts_findings_but_advice() -> None:
    status = run_status(Path("/nowhere"))
    checked = Checked(summary={"checked_steps": 3})
    assert status.verdict == 4
    assert replace(status, checked=replace(checked, summary={})).verdict == 4
    assert replace(status, checked=replace(checked, counts={"info": 2})).verdict == 0
    assert replace(status, checked=replace(checked, counts={"warning": 1})).verdict == 1


@pytest.mark.parametrize("content", [b"", b"[]", b'{"step": "three"}', b"\xff\x00"])
def test_a_damaged_file_of_a_check_is_no_check(tmp_path: Path, content: bytes) -> None:
    (tmp_path / CHECKED).write_bytes(content)
    assert read_checked(tmp_path) is None


def test_the_file_of_a_check_is_read_as_it_was_written(tmp_path: Path) -> None:
    checked = Checked(step=4, pid=7, over=True, summary={"held": 3}, counts={"error": 2})
    write_checked(tmp_path, checked)
    assert read_checked(tmp_path) == replace(checked, findings=[])
    assert checked.number("finding") == checked.serious == 2
