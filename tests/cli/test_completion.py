"""What a shell completes, through the function that it calls."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from traincheck.cli import main as entry
from traincheck.presets import preset_names
from traincheck.report.registry import FORMATS


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
        ("traincheck r", ["plain,run", "plain,report", "plain,rules"]),
        ("traincheck invariants li", ["plain,list"]),
        ("traincheck run --hal", ["plain,--halt"]),
        ("traincheck check --select tc10", [f"plain,TC10{n}" for n in range(1, 10)]),
        ("traincheck check --select TC2,TC101", ["plain,TC2,TC101"]),
        ("traincheck rules --explain TC90", [f"plain,TC90{n}" for n in range(1, 10)]),
        ("traincheck check --ignore order", ["plain,order"]),
        ("traincheck check --format ", [f"plain,{name}" for name in FORMATS.built_in]),
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
    assert entry.run(entry.main, "traincheck", []) != 0


SHELLS = {"bash": ["--norc", "--noprofile", "-i"], "zsh": ["-f", "-i"]}
SETUP = {"bash": "", "zsh": "autoload -Uz compinit; compinit -u; "}


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("traincheck invari\t", "traincheck invariants"),
        ("traincheck rules --explain TC10\t\t", "TC109"),
        ("traincheck-check --fol\t", "traincheck-check --follow"),
        ("traincheck-check -t her\t", "traincheck-check -t here/"),
    ],
)
def test_a_shell_completes(shell: str, typed: str, completed: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None and "CI" not in os.environ:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "here").mkdir()
    for name, function in (("traincheck", "main"), ("traincheck-check", "check_main")):
        script = tmp_path / "bin" / name
        script.parent.mkdir(exist_ok=True)
        script.write_text(
            f"#!{sys.executable}\nfrom traincheck.cli.main import {function}\n"
            f"raise SystemExit({function}())\n"
        )
        script.chmod(0o755)
    name = typed.partition(" ")[0]
    variable = f"_{name}_COMPLETE".replace("-", "_").upper()
    line = f'{SETUP[shell]}eval "$({variable}={shell}_source {name})"; echo re""ady\n'
    env = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "TERM": "dumb"}
    with interactive([shell, *SHELLS[shell]], tmp_path, env) as (write, wait_for):
        write(line)
        wait_for("ready")
        write(typed)
        wait_for(completed)


@contextmanager
def interactive(command: list[str], folder: Path, env: dict[str, str]):
    """A program on a terminal: what types on it, and what waits for a text on it."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, env=env
    )
    os.close(theirs)
    shown = bytearray()

    def wait_for(text: str) -> None:
        while text.encode() not in shown:
            assert select.select([ours], [], [], 120)[0], shown.decode()
            shown.extend(os.read(ours, 1 << 16))

    try:
        yield lambda text: os.write(ours, text.encode()), wait_for
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_the_package_is_a_program() -> None:
    command = [sys.executable, "-m", "traincheck", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("traincheck, version ")
