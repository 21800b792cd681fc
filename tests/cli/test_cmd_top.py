"""traincheck top in terminals of 80x24 and 200x50, on recorded runs and on one that goes on."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.builders import healthy_run
from tests.live.runs import BROKEN, checked_by, norms_at, write
from tests.live.terminal import Terminal
from traincheck.cli.main import BAD_USAGE, main
from traincheck.store.manifest import Manifest, write_manifest

SIZES = [(80, 24), (200, 50)]
FORGETS_ZERO_GRAD = """
import time, torch

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(60):
    loss = net(torch.randn(8, 4)).square().mean()
    loss.backward()
    optimizer.step()
    time.sleep(0.1)
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with 60 layers, and a finding of its live check."""
    steps = [e for s in range(6) for e in norms_at(s, {f"Net.b{n}": n + s for n in range(60)})]
    made = write(tmp_path / "run", steps, Manifest(command=("python", "train.py"), ended="x"))
    checked_by(BROKEN, made)
    return made


def rows(terminal: Terminal) -> int:
    """How many layers are shown."""
    return sum(line.startswith("Net.b") for line in terminal.lines)


@pytest.mark.parametrize("size", SIZES)
def test_the_view_fills_the_terminal_and_gives_it_back(run: Path, size: tuple[int, int]) -> None:
    with Terminal(["top", str(run)], *size) as terminal:
        terminal.until(lambda t: rows(t) == size[1] - 6)
        lines = terminal.lines
        assert lines[0].startswith("train.py  ended  step 5")
        assert "ERROR TC201" in lines[2]
        assert lines[-1].startswith("q quit")
        assert not terminal.echoes
        terminal.type("q")
        assert terminal.end() == 0
        assert terminal.echoes
        assert "q quit" not in terminal.text.splitlines()[0]
        assert terminal.received.endswith(b"\x1b[?25h") or b"\x1b[?1049l" in terminal.received


def test_keys_sort_filter_scroll_and_show_findings(run: Path) -> None:
    with Terminal(["top", str(run)], 80, 24) as terminal:
        terminal.until_shown("q quit")
        terminal.type("s")
        terminal.until(lambda t: t.lines[4].startswith("Net.b59 "))
        terminal.type("r")
        terminal.until(lambda t: t.lines[4].startswith("Net.b0 "))
        terminal.type("\x1b[B")
        terminal.until(lambda t: t.lines[4].startswith("Net.b1 "))
        terminal.type("/b33\r")
        terminal.until(lambda t: t.lines[4].startswith("Net.b33 ") and not t.lines[5])
        terminal.type("f")
        terminal.until_shown("fix: Call optimizer.zero_grad()")
        terminal.type("?")
        terminal.until_shown("show this list")
        terminal.type("q")
        assert terminal.end() == 0


def test_a_new_size_is_followed(run: Path) -> None:
    """Nothing is written that does not fit, neither before nor after."""
    with Terminal(["top", str(run)], 80, 24) as terminal:
        terminal.until_shown("q quit")
        terminal.resize(120, 40)
        terminal.until(lambda t: rows(t) == 34 and t.lines[-1].startswith("q quit"))


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_signals_end_it_and_give_the_terminal_back(run: Path, number: int, status: int) -> None:
    with Terminal(["top", str(run)], 80, 24) as terminal:
        terminal.until_shown("q quit")
        terminal.process.send_signal(number)
        assert terminal.end() == status
        assert terminal.echoes
        assert b"\x1b[?1049l" in terminal.received


@pytest.mark.slow
def test_a_run_that_goes_on_is_followed_to_its_finding_and_its_end(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(FORGETS_ZERO_GRAD)
    command = [sys.executable, "-m", "traincheck", "run", "-o", "live", str(script)]
    program = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        while not any((tmp_path / "live").glob("events-*")):
            assert program.poll() is None
            time.sleep(0.05)
        with Terminal(["top", "live"], 80, 24, cwd=tmp_path) as terminal:
            terminal.until_shown("running")
            terminal.until_shown("ERROR TC201 at step 1")
            terminal.until(lambda t: re.search(r"running  step [345]", t.text) is not None)
            terminal.until_shown("ended  step 59", 120)
            terminal.type("q")
            assert terminal.end() == 0
        assert program.wait(60) == 1
    finally:
        program.kill()
        program.wait()


def test_a_trace_that_is_removed_ends_nothing(run: Path) -> None:
    write_manifest(run, Manifest(command=("python", "train.py")))
    with Terminal(["top", str(run)], 80, 24) as terminal:
        terminal.until_shown("lost")
        shutil.rmtree(run)
        terminal.until_shown("removed")
        terminal.type("q")
        assert terminal.end() == 0


def test_without_a_terminal_it_prints_once(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", str(run)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "\x1b" not in out
    assert out.startswith("train.py  ended  step 5")
    assert sum(line.startswith("Net.b") for line in out.splitlines()) == 60


def test_it_checks_the_run_where_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write(tmp_path / "run", BROKEN)
    assert main(["top", str(run), "--once"]) == 0
    assert "not checked" in capsys.readouterr().out
    assert main(["top", str(run), "--once", "--check"]) == 0
    assert "ERROR TC201 at step 1" in capsys.readouterr().out
    assert main(["top", str(write(tmp_path / "good", healthy_run(5))), "--check"]) == 0
    assert "ERROR" not in capsys.readouterr().out


def test_a_folder_without_a_run_is_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", str(tmp_path / "none")]) == BAD_USAGE
    assert "fix:" in capsys.readouterr().err
