"""traincheck status: one line, JSON, exit statuses, errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.builders import healthy_run
from tests.live.runs import BROKEN, checked_by, write
from traincheck.cli.main import BAD_USAGE, main
from traincheck.store.manifest import Manifest


@pytest.mark.parametrize(("events", "status"), [(BROKEN, 1), (healthy_run(12), 0)])
def test_the_exit_status_tells_of_findings(
    events: list, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write(tmp_path / "run", events)
    checked_by(events, run)
    assert main(["status", str(run)]) == status
    out, err = capsys.readouterr()
    assert out.count("\n") == 1
    assert out.startswith("state=lost step=")
    assert err == ""


def test_a_run_that_nothing_checks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write(tmp_path / "run", BROKEN)
    assert main(["status", str(run), "--json"]) == 4
    found = json.loads(capsys.readouterr().out)
    assert (found["step"], found["findings"], found["is_checking"]) == (3, None, False)


def test_a_single_run_in_a_folder_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "runs" / "one", BROKEN)
    assert main(["status", str(tmp_path / "runs")]) == 4
    assert capsys.readouterr().out.rstrip().endswith("runs/one")


def test_a_folder_without_a_run_is_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", str(tmp_path / "none")]) == BAD_USAGE
    assert "does not exist" in capsys.readouterr().err


def test_a_check_that_follows_leaves_what_it_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = Manifest(started="2026-01-01T00:00:00Z", ended="2026-01-01T00:01:00Z", exit_status=0)
    run = write(tmp_path / "run", BROKEN, ended)
    assert main(["check", "-t", str(run), "--follow", "--format", "json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert main(["status", str(run), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["checked_step"], found["is_checking"]) == (3, False)
    assert found["summary"] == told["summary"]
    assert [one["id"] for one in found["findings"]] == [one["id"] for one in told["findings"]]
    assert main(["top", str(run), "--once"]) == 0
    assert f"checks {told['summary']['held']} held" in capsys.readouterr().out
