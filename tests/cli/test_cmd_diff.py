"""traincheck diff: its reports, its exit status, and programs that it records."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.diff.run_pairs import edited, new_value, of, state, training, write
from traincheck.cli import main as entry

Command = Callable[..., int]
PROGRAM = """
import sys
import time

import torch

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs = torch.randn(8, 4)
for step in range(4):
    optimizer.zero_grad()
    noise = time.time() % 1 if "noise" in sys.argv and step == 2 else 0.0
    (model(inputs) + noise).square().mean().backward()
    optimizer.step()
sys.exit(3 if "fail" in sys.argv else 0)
"""


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> int:
        monkeypatch.setattr(sys, "argv", ["traincheck", "diff", *map(str, words)])
        return entry.main()

    return run


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    a = write(tmp_path / "good", training())
    return a, write(tmp_path / "new", new_value(training(), state("parameter", 3)))


def test_says_that_runs_are_the_same(
    command: Command, runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(runs[0], runs[0]) == 0
    assert capsys.readouterr().out.startswith("SAME  5 steps")


def test_shows_the_first_difference_and_its_cause(
    command: Command, runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(*runs) == 1
    shown = capsys.readouterr().out
    assert shown.startswith("FIRST DIFFERENCE  step 3, parameter, rank 0: Net.fc1.weight differs")
    assert "cause          1 parameter differs" in shown
    assert "agrees before" in shown


def test_lists_the_other_differences(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = write(tmp_path / "a", training())
    b = edited(training(), of("batch", 3), indices=(7, 8, 9))
    names = ("fc1.weight", "fc2.weight", "fc2.bias")
    for name in names:
        b = new_value(b, state("parameter", 3, f"Net.{name}"))
    assert command(a, write(tmp_path / "b", b), "--all", "--limit", 2) == 1
    shown = capsys.readouterr().out
    assert "other differences of step 3:" in shown
    assert "Net.fc1.weight" in shown
    assert "and 1 more" in shown


def test_a_report_in_json(command: Command, runs: tuple[Path, Path], tmp_path: Path) -> None:
    output = tmp_path / "report.json"
    assert command(*runs, "--format", "json", "-o", output) == 1
    report = json.loads(output.read_text())
    assert report["first"]["phase"] == "parameter"
    assert report["cause"]["code"] == "written-outside"
    assert not report["same"]


def test_reports_for_ci(
    command: Command, runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(*runs, "--format", "junit") == 1
    suites = ET.fromstring(capsys.readouterr().out)
    assert suites.get("failures") == "1"
    assert command(*runs, "--format", "sarif") == 1
    sarif = json.loads(capsys.readouterr().out)
    assert sarif["runs"][0]["results"][0]["ruleId"] == "first-difference/written-outside"
    assert command(*runs, "--format", "github") == 1
    assert capsys.readouterr().out.startswith("::error title=traincheck%3A step 3")
    assert command(*runs, "--format", "markdown") == 1
    assert "| parameter | 1 |" in capsys.readouterr().out


def test_reports_for_ci_of_equal_runs(
    command: Command, runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(runs[0], runs[0], "--format", "junit") == 0
    assert ET.fromstring(capsys.readouterr().out).get("failures") == "0"
    assert command(runs[0], runs[0], "--format", "sarif") == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["results"] == []
    assert command(runs[0], runs[0], "--format", "github") == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["good"], "1 runs are named"),
        (["good", "new", "new"], "3 runs are named"),
        (["good", "nowhere"], "does not exist"),
        (["good", "new", "--exact", "--rtol", "1e-5"], "exclude each other"),
        (["good", "new", "--rtol", "-1"], "rtol is -1.0"),
        (["good", "new", "--phase", "grads"], "'grads' is not a phase"),
        (["good", "new", "--rank", "x"], "rank 'x'"),
        (["good", "new", "--steps", "5"], "steps '5' is not a range"),
        (["good", "new", "--until", "soon"], "until 'soon'"),
        (["good", "new", "--map", "x"], "--map 'x'"),
        (["good", "--ranks"], "has one rank"),
        (["good", "--twice", "--ranks"], "exclude each other"),
        (["good", "new", "--halt"], "--halt is only for --against"),
        (["good", "new", "--", "python"], "a program is named"),
        (["--twice"], "no program to run"),
        (["good", "--twice", "--", "python"], "--twice compares two runs of one program"),
        (["--against", "--", "python"], "--against needs one"),
        (["good", "new", "--rtol", "1", "--control", "new"], "cannot be used together"),
    ],
)
def test_bad_usage(
    command: Command,
    runs: tuple[Path, Path],
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    said: str,
) -> None:
    assert command(*words) == entry.BAD_USAGE
    shown = capsys.readouterr().err
    assert said in shown
    assert "fix:" in shown


def test_a_control_run_tells_what_is_noise(command: Command, tmp_path: Path) -> None:
    def moved(norm: float) -> Path:
        events = new_value(training(), state("parameter", 3), norm)
        return write(tmp_path / f"norm{norm}", events)

    a = write(tmp_path / "a", training())
    control = moved(2.1)
    assert command(a, moved(2.2), "--control", control) == 0
    assert command(a, moved(2.4), "--control", control) == 1
    assert command(a, moved(2.3), "--control", control, "--spread", 1) == 1


def test_a_tolerance(command: Command, tmp_path: Path) -> None:
    a = write(tmp_path / "a", training())
    b = write(tmp_path / "b", new_value(training(), state("parameter", 3), 2.00001))
    assert command(a, b) == 1
    assert command(a, b, "--rtol", "1e-4") == 0
    assert command(a, b, "--rtol", "1e-6") == 1


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return path


@pytest.mark.slow
def test_a_program_is_recorded_twice_and_against_a_run(
    command: Command, program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("--twice", "--", sys.executable, program) == 0
    good = next(path for path in sorted((tmp_path / "traces").iterdir()))
    against = (good, "--against", "--halt", "--", sys.executable)
    assert command(*against, program) == 0
    assert command(*against, program, "noise") == 1
    assert command(*against, program, "fail") == 125
    capsys.readouterr()
    assert command("--twice", "--", sys.executable, program, "noise") == 1
    assert "FIRST DIFFERENCE  step 2, loss" in capsys.readouterr().out
    assert command(*against, tmp_path / "nowhere.py") == 125
