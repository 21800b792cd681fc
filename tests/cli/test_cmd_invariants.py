"""traincheck invariants: what each command says, and its exit status."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builders import healthy_run
from tests.cli.test_cmd_infer import write
from tests.infer.test_statistics import without_zero_grad
from traincheck.cli import main as entry
from traincheck.schema.invariant_file import read_invariants

Command = Callable[..., int]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> int:
        monkeypatch.setattr(sys, "argv", ["traincheck", *map(str, words)])
        return entry.main()

    return run


@pytest.fixture
def learned(command: Command, tmp_path: Path, capsys) -> Path:
    """Invariants of one run, as invariant.json."""
    write(tmp_path / "runs" / "good", healthy_run(12))
    assert command("infer", "-t", "runs/good") == 0
    capsys.readouterr()
    return tmp_path / "invariant.json"


def test_a_list_has_a_line_for_each(command: Command, learned: Path, capsys) -> None:
    assert command("invariants", "list") == 0
    lines = capsys.readouterr().out.splitlines()
    known = read_invariants(learned)
    assert [line.split()[0] for line in lines] == [one.id for one in known]
    assert command("invariants", "list", learned, "--relation", "order", "--text", "ZERO_GRAD") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert all(" order " in line and " error " in line and "zero_grad" in line for line in lines)


def test_a_list_on_a_terminal(command: Command, learned: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    assert command("invariants", "list", "--relation", "order") == 0
    out, err = capsys.readouterr()
    assert "order-" in out
    assert f"invariants: {out.count('order-')} order" in err


def test_a_list_as_json(command: Command, learned: Path, capsys) -> None:
    assert command("invariants", "list", "--format", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found) == len(read_invariants(learned))
    assert set(found[0]) == {"id", "relation", "severity", "examples", "confidence", "text"}


def test_one_is_shown_in_full(command: Command, learned: Path, capsys) -> None:
    one = next(i for i in read_invariants(learned) if "every parameter changes" in i.text)
    assert command("invariants", "show", one.id) == 0
    out = capsys.readouterr().out
    assert out.startswith(one.text)
    for part in ("severity:     error", "params:", "condition:", "implies:", "parameter@step"):
        assert part in out
    assert f"{one.support.positive} in 12 steps of 1 run" in out
    learned.rename("good.json")
    assert command("invariants", "show", one.id[:-2], "good.json", "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["id"] == one.id


def test_one_that_is_not_there(command: Command, learned: Path, capsys) -> None:
    assert command("invariants", "show", "order-nothing") == 2
    assert "fix: did you mean order-" in capsys.readouterr().err
    assert command("invariants", "show", "order") == 2
    assert "begin with 'order'" in capsys.readouterr().err


def test_a_difference(command: Command, learned: Path, tmp_path: Path, capsys) -> None:
    write(tmp_path / "runs" / "leaking", without_zero_grad())
    assert command("invariants", "diff", learned, learned) == 0
    assert command("infer", "-t", "runs/leaking", "-o", "other.json") == 0
    capsys.readouterr()
    assert command("invariants", "diff", learned, "other.json") == 1
    out, err = capsys.readouterr()
    gone = [line for line in out.splitlines() if line.startswith("- ")]
    assert any("zero_grad is called" in line for line in gone)
    assert f"{len(gone)} removed" in err
    assert command("invariants", "diff", learned, "other.json", "--format", "json") == 1
    assert len(json.loads(capsys.readouterr().out)["removed"]) == len(gone)


def test_merging_is_learning_from_all_runs(command: Command, learned: Path, tmp_path: Path) -> None:
    write(tmp_path / "runs" / "more", healthy_run(9, scheduler=True))
    assert command("infer", "-t", "runs/more", "-o", "more.json") == 0
    assert command("invariants", "merge", learned, "more.json", "-o", "both.json") == 0
    assert command("infer", "-t", "runs", "-o", "at-once.json") == 0
    for end in ("", ".stats", ".dropped.json"):
        both, at_once = (tmp_path / f"{name}.json{end}" for name in ("both", "at-once"))
        assert both.read_bytes() == at_once.read_bytes()
    assert command("invariants", "merge", learned, "-o", "both.json") == 2
    assert command("invariants", "merge", learned, "-o", "both.json", "--force") == 0


def test_merging_needs_statistics(command: Command, learned: Path, capsys) -> None:
    learned.with_name("invariant.json.stats").unlink()
    assert command("invariants", "merge", learned, "-o", "c.json") == 2
    assert "fix: keep the .stats file" in capsys.readouterr().err


def test_a_good_run_holds_and_a_bad_one_does_not(
    command: Command, learned: Path, tmp_path: Path, capsys
) -> None:
    assert command("invariants", "validate", learned, "-t", "runs/good") == 0
    assert "runs/good: 0 violated, 0 not observable, " in capsys.readouterr().out
    write(tmp_path / "runs" / "leaking", without_zero_grad())
    assert command("invariants", "validate", learned, "-t", "runs") == 1
    out = capsys.readouterr().out
    assert "zero_grad" in out
    assert "broken in the full view, the selective view" in out
    assert command("invariants", "validate", learned, "-t", "runs", "--format", "json") == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["runs/good"]["violated"]
    assert {"id", "text", "views"} <= set(found["runs/leaking"]["violated"][0])


def test_a_file_of_another_form_is_no_good(command: Command, tmp_path: Path, capsys) -> None:
    (tmp_path / "bad.json").write_text('{"schema_version": 1}')
    assert command("invariants", "validate", "bad.json", "-t", ".") == 2
    assert "bad.json" in capsys.readouterr().err
