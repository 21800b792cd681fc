"""traincheck run --live: the view has the terminal, and the program loses none of its output."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.terminal import Terminal
from traincheck.live.program_view import last_lines

PROGRAM = """
import os, sys, time, torch

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
print("terminal", sys.stdout.isatty(), sys.stderr.isatty(), sys.stdin.isatty())
print("size", tuple(os.get_terminal_size(2)) if sys.stderr.isatty() else ())
for step in range(int(sys.argv[1])):
    if "healthy" in sys.argv:
        optimizer.zero_grad()
    loss = net(torch.randn(8, 4)).square().mean()
    loss.backward()
    optimizer.step()
    print("line", step, flush=True)
    time.sleep(0.05)
print("on stderr", file=sys.stderr)
print("weights", net[0].weight.double().sum().item())
sys.exit(7)
"""
INTO_A_FILE = """
import subprocess, sys

with open("out.txt", "wb") as file:
    command = [sys.executable, "-m", "traincheck", *sys.argv[1:]]
    sys.exit(subprocess.call(command, stdout=file))
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return path


def run(*arguments: str) -> list[str]:
    return ["run", "--live", "-o", "live", "train.py", *arguments]


@pytest.mark.slow
def test_the_view_is_shown_and_all_output_follows(script: Path) -> None:
    alone = subprocess.run(
        [sys.executable, str(script), "40", "healthy"], capture_output=True, text=True, check=False
    )
    weights = alone.stdout.splitlines()[-1]
    with Terminal(run("40", "healthy"), 80, 24, cwd=script.parent) as terminal:
        terminal.until_shown("running  step")
        terminal.until_shown("output of the program")
        terminal.until(lambda t: any(line.startswith("  line ") for line in t.lines))
        assert terminal.end() == 7
        assert terminal.echoes
        after = terminal.received.rpartition(b"\x1b[?1049l")[2].decode()
    lines = after.replace("\r", "").split("\n")
    assert lines[:2] == ["terminal True True False", "size (80, 24)"]
    assert lines[2:44] == [*(f"line {n}" for n in range(40)), "on stderr", weights]
    assert "no findings in 40 steps" in after


@pytest.mark.slow
def test_after_q_the_program_goes_on_in_the_terminal(script: Path) -> None:
    with Terminal(run("60"), 80, 24, cwd=script.parent) as terminal:
        terminal.until_shown("ERROR TC201 at step 1")
        terminal.type("q")
        terminal.until_shown("line 1")
        terminal.until(lambda t: not any(line.startswith("q quit") for line in t.lines))
        assert terminal.process.poll() is None
        assert terminal.end() == 1
        after = terminal.received.rpartition(b"\x1b[?1049l")[2].decode()
    found = [line for line in after.replace("\r", "").split("\n") if line.startswith("line ")]
    assert found == [f"line {n}" for n in range(60)]
    assert "1 finding in 60 steps" in after


@pytest.mark.slow
def test_a_stream_that_is_a_file_is_left_alone(script: Path) -> None:
    program = ["-c", INTO_A_FILE, *run("5")]
    with Terminal([], 80, 24, cwd=script.parent, program=program) as terminal:
        terminal.end()
    written = (script.parent / "out.txt").read_text().splitlines()
    assert written[0] == "terminal False True False"
    assert written[2:7] == [f"line {n}" for n in range(5)]


def test_without_a_terminal_nothing_is_started(script: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "traincheck", *run("5")],
        cwd=script.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "--live needs a terminal" in done.stderr
    assert not (script.parent / "live").exists()


@pytest.mark.parametrize(
    ("written", "lines"),
    [
        (b"a\nb\nc", ["b", "c"]),
        (b"10%\r20%\r30%", ["30%"]),
        (b"10%\r\n20%\r\n", ["10%", "20%"]),
        (b"\x1b[31mred\x1b[0m\n\x1b]0;title\x07x\n", ["red", "x"]),
        (b"\n\n \n", []),
        (b"\xff\n", ["\ufffd"]),
    ],
)
def test_the_last_lines_are_as_a_terminal_shows_them(written: bytes, lines: list[str]) -> None:
    assert last_lines(written, 2) == lines
    assert last_lines(written, 0) == []


@pytest.mark.slow
def test_receivers_and_the_page_get_what_the_view_shows(script: Path) -> None:
    options = ["--to", "logging=told.log", "--to", "tensorboard=/dev/null/x", "--html", "page.html"]
    words = ["run", "--live", "-o", "live", *options, "train.py", "60"]
    with Terminal(words, 120, 24, cwd=script.parent) as terminal:
        terminal.until_shown("ERROR TC201 at step 1")
        told = script.parent / "told.log"
        terminal.until(lambda t: told.exists() and "TC201" in told.read_text())
        assert terminal.end() == 1
        in_view, _, after = terminal.received.rpartition(b"\x1b[?1049l")
    assert "1 finding; " in told.read_text()
    assert b"receiver tensorboard failed" not in in_view
    assert after.count(b"receiver tensorboard failed") == 1
    assert "TC201" in (script.parent / "page.html").read_text()
