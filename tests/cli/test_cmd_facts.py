"""traincheck facts: the card of a run, of two runs, and beside the source."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.checking import net
from tests.diff.run_pairs import write
from traincheck.cli import main as entry
from traincheck.facts.book import facts_of
from traincheck.facts.population import encoded, population_of, read_population

Command = Callable[..., int]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> int:
        monkeypatch.setattr(sys, "argv", ["traincheck", "facts", *map(str, words)])
        return entry.main()

    return run


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    """A healthy one, and one whose losses are zero and whose parameters never change."""
    still = net().steps(8, not_updated=set(net().parameters()))
    return write(tmp_path / "good", net().steps(8).build()), write(tmp_path / "bad", still.build())


def test_the_unusual_comes_first(
    command: Command, runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(runs[1]) == 0
    out = capsys.readouterr().out
    assert out.startswith("8 steps of")
    _, _, unusual = out.partition("\nunusual\n")
    assert "changes in a recorded step" in unusual.partition("\nusual\n")[0]


def test_findings_of_rules_stand_before_facts(
    command: Command, runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    command(runs[1])
    out = capsys.readouterr().out
    assert out.index("findings of rules") < out.index("\nunusual")


def test_a_healthy_run_is_calm(
    command: Command, runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(runs[0]) == 0
    assert "No fact of this run is unusual" in capsys.readouterr().out


def test_two_runs_are_held_side_by_side(
    command: Command, runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(*runs) == 0
    assert "changes in a recorded step" in capsys.readouterr().out
    assert command(*runs, "--format", "json") == 0
    found = json.loads(capsys.readouterr().out)
    kinds = {row["kind"] for one in found["differ"] for row in one["b"]}
    assert "signal.parameters that never change" in kinds


@pytest.mark.parametrize("form", ["json", "markdown"])
def test_other_formats(
    form: str, command: Command, runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(runs[1], "--format", form) == 0
    out = capsys.readouterr().out
    texts = [row["text"] for row in json.loads(out)["facts"]] if form == "json" else [out]
    assert any("changes in a recorded step" in text for text in texts)


def test_own_programs_make_a_fact_usual(
    command: Command, runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    still = facts_of(net().steps(8, not_updated=set(net().parameters())).build())
    own = tmp_path / "own.json"
    own.write_bytes(encoded(population_of([still] * 40)))
    command(runs[1], "--population", own, "--format", "json")
    rows = json.loads(capsys.readouterr().out)["facts"]
    (row,) = [row for row in rows if row["kind"] == "signal.parameters that never change"]
    assert not row["unusual"]
    assert row["healthy_programs"] == 40


def test_runs_are_counted_by_program_and_then_make_a_fact_usual(
    command: Command, runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "bad_again", net().steps(9, not_updated=set(net().parameters())).build())
    assert command(*runs, "bad_again", "--write-population", "mine.json") == 0
    said = capsys.readouterr().err
    assert f"2 of 3: {runs[1]}" in said
    found = read_population(tmp_path / "mine.json")
    assert found.programs == 3  # no script: each run is a program
    assert found.showing["signal.parameters that never change", "all"] == 2
    command(runs[1], "--population", "mine.json", "--format", "json")
    rows = json.loads(capsys.readouterr().out)["facts"]
    (row,) = [row for row in rows if row["kind"] == "signal.parameters that never change"]
    assert row["healthy_programs"] >= 2


def named(run: Path, **values: Any) -> Path:
    """A run whose manifest has other values."""
    path = run / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    return run


def test_runs_of_one_script_are_one_program(
    command: Command, runs: tuple[Path, Path], tmp_path: Path
) -> None:
    for run in runs:
        named(run, command=["python", "train.py"], cwd="/home/u", exit_status=0)
    assert command(tmp_path, "--write-population", "mine.json") == 0
    assert read_population(tmp_path / "mine.json").programs == 1


def test_a_run_that_failed_is_left_out(
    command: Command, runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named(runs[1], exit_status=3)
    assert command(*runs, "--write-population", "mine.json") == 0
    assert "left out: it ended with status 3" in capsys.readouterr().err
    assert read_population(tmp_path / "mine.json").programs == 1
    assert command(runs[1], "--write-population", "none.json") == 2
    assert "no run of a program that ended with status 0" in capsys.readouterr().err
    assert not (tmp_path / "none.json").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("missing", "--write-population", "mine.json"), "missing"),
        (("broken", "--write-population", "mine.json"), "broken"),
        (("good", "--write-population", "none/mine.json"), "none is not a directory"),
    ],
)
def test_what_cannot_be_counted_is_named(
    words: tuple[str, ...],
    said: str,
    command: Command,
    runs: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "manifest.json").write_text("{")
    assert command(*words) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "mine.json").exists()


def test_source_without_a_copy_is_said(
    command: Command, runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(runs[1], "--annotate") == 0
    assert "No fact has a line of which the trace holds a copy" in capsys.readouterr().out


def test_a_brief_holds_all_facts_and_what_is_missing(
    command: Command, runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    command(runs[1], "--format", "json")
    told = {row["text"] for row in json.loads(capsys.readouterr().out)["facts"]}
    assert command(runs[1], "--brief") == 0
    out = capsys.readouterr().out
    assert all(text in out for text in told)
    unusual = out.partition("## Unusual facts")[2].partition("## Usual facts")[0]
    assert "changes in a recorded step" in unusual
    missing = out.partition("## What was not looked at")[2]
    assert "operators.softmax" in missing  # no function of torch is in this trace
    assert "signal.loss" not in missing
    assert command(runs[0], "--brief") == 0
    assert "## Unusual facts, the rarest first\n\nNone." in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--brief", "--annotate"])
def test_a_text_about_one_run_is_of_one_run(
    option: str, command: Command, runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(*runs, option) == 2
    assert command(runs[0], option, "--format", "json") == 2
    assert capsys.readouterr().err.count(f"{option} prints text about one run") == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "takes one run or two, not 0"),
        (("a", "b", "c"), "takes one run or two, not 3"),
        (("none",), "none"),
        (("good", "--population", "good/manifest.json"), "is no population of facts"),
    ],
)
def test_bad_usage(
    words: tuple[str, ...],
    said: str,
    command: Command,
    runs: tuple[Path, Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command(*words) == 2
    assert said in capsys.readouterr().err
