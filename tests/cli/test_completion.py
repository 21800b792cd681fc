"""What a shell completes, through the function that it calls."""

from __future__ import annotations

import subprocess
import sys

import pytest

from traincheck.cli import main as entry
from traincheck.presets import preset_names
from traincheck.report.registry import SINKS


@pytest.fixture
def complete(monkeypatch, capsys):
    def run(line: str, name: str = "traincheck") -> list[str]:
        words = line.split(" ")
        variable = f"_{name}_COMPLETE".replace("-", "_").upper()
        monkeypatch.setenv(variable, "bash_complete")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        command = entry.main if name == "traincheck" else entry.load("check")
        assert entry.run(command, name, []) == 0
        return capsys.readouterr().out.split()

    return run


@pytest.mark.parametrize(
    ("line", "items"),
    [
        ("traincheck r", ["plain,run", "plain,rules"]),
        ("traincheck invariants li", ["plain,list"]),
        ("traincheck run --hal", ["plain,--halt"]),
        ("traincheck check --select tc10", [f"plain,TC10{n}" for n in range(1, 10)]),
        ("traincheck check --select TC2,TC101", ["plain,TC2,TC101"]),
        ("traincheck rules --explain TC90", [f"plain,TC90{n}" for n in range(1, 10)]),
        ("traincheck check --ignore order", ["plain,order"]),
        ("traincheck check --format ", [f"plain,{name}" for name in SINKS]),
        ("traincheck run --report js", ["plain,json="]),
        ("traincheck run --report json=a", ["file,json=a"]),
        ("traincheck check --preset ", [f"plain,{name}" for name in preset_names()]),
        ("traincheck infer --relation contai", ["plain,contains"]),
        ("traincheck run tra", ["file,tra"]),
        ("traincheck check -t tra", ["dir,tra"]),
        ("traincheck run train.py --hal", ["file,--hal"]),
        ("traincheck nonsense x", []),
    ],
)
def test_words_are_completed(complete, line: str, items: list[str]) -> None:
    assert complete(line) == items


def test_each_console_script_completes(complete) -> None:
    assert complete("traincheck-check --fol", "traincheck-check") == ["plain,--follow"]


def test_the_script_for_a_shell_names_the_variable(monkeypatch, capsys) -> None:
    monkeypatch.setenv("_TRAINCHECK_COMPLETE", "zsh_source")
    assert entry.run(entry.main, "traincheck", []) == 0
    assert "_TRAINCHECK_COMPLETE=zsh_complete traincheck" in capsys.readouterr().out
    monkeypatch.setenv("_TRAINCHECK_COMPLETE", "nonsense")
    assert entry.run(entry.main, "traincheck", []) == 2


def test_the_package_is_a_program() -> None:
    command = [sys.executable, "-m", "traincheck", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("traincheck, version ")
