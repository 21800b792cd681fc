"""Commands that read give the same results in an environment without torch."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import warm

TRAIN = """
import sys, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(12):
    x, y = torch.randn(4, 8), torch.arange(4) % 2
    if "clear" in sys.argv:
        optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
"""
READING = (
    "--version",
    "--help",
    "check --help",
    "infer -t good -o learned.json",
    "check -t good",
    "check -t bad --html findings.html",
    "check -t bad -i learned.json --format json",
    "check -t bad --preset pytorch --follow",
    "diff good bad --html difference.html",
    "facts bad",
    "facts good bad",
    "facts bad --annotate",
    "report bad -o page.html",
    "metrics monitored",
    "metrics monitored --by step --format csv",
    "profile profiled",
    "trace show bad",
    "trace export bad -o tables",
    "trace checksums good",
    "invariants list learned.json",
    "rules",
    "rules --explain TC201",
)
RECORDING = (
    "run train.py",
    "run -- python train.py",
    "collect -o new -p train.py",
    "monitor -o new train.py",
    "profile train.py",
    "probe train.py",
)
# Runs commands one after the other, and prints what each of them did. Without torch: its import
# fails as if it were not installed.
CHILD = """
import contextlib, io, json, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")

if {has_torch}:
    import torch
else:
    sys.meta_path.insert(0, Missing())
import pytest  # whose plugin an environment without torch has too
import traincheck.integrations.pytest_plugin
from traincheck.cli.main import main, run

found = dict()
for line in {lines!r}:
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        status = run(main, "traincheck", line.split())
    found[line] = [status, out.getvalue(), errors.getvalue()]
if "facts bad" in found:
    import traincheck
    found["open"] = [0, traincheck.open("good").calls(steps=range(3)).to_json(), ""]
print(json.dumps(found))
assert ("torch" in sys.modules) == {has_torch}
"""
# The time of day, and which process it was.
_OTHER = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*|\"pid\":\d+")


def results(folder: Path, lines: tuple[str, ...], *, has_torch: bool) -> dict[str, Any]:
    """Status, output and errors of each command line, from one process."""
    with warm.real_processes():  # a copy of the warm process has torch
        done = subprocess.run(
            [sys.executable, "-c", CHILD.format(lines=lines, has_torch=has_torch)],
            cwd=folder,
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def contents(folder: Path) -> dict[str, bytes]:
    """The files that commands wrote, without times and processes."""
    return {
        path.relative_to(folder).as_posix(): _OTHER.sub("", path.read_text("latin-1")).encode()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "train.py").write_text(TRAIN, encoding="utf-8")
    for line in (
        "collect --quiet --checksums first=2 -o good -p train.py clear",
        "collect --quiet -o bad -p train.py",
        "monitor --quiet --every 1 -o monitored train.py clear",
        "profile --trace profiled --step 5 train.py clear",
    ):
        words = [sys.executable, "-m", "traincheck", *line.split()]
        subprocess.run(words, cwd=folder, check=True, capture_output=True)
    return folder


def copied(source: Path, target: Path) -> Path:
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)
    return target


def test_commands_that_read_give_the_same_without_torch(recorded: Path, tmp_path: Path) -> None:
    with_it, without = (copied(recorded, tmp_path / name) for name in ("with", "without"))
    expected = results(with_it, READING, has_torch=True)
    found = results(without, READING, has_torch=False)
    assert {line: status for line, (status, *_) in found.items() if status} == {
        "check -t bad --html findings.html": 1,
        "check -t bad -i learned.json --format json": 1,
        "check -t bad --preset pytorch --follow": 1,
        "diff good bad --html difference.html": 1,
    }
    assert _OTHER.sub("", json.dumps(found)) == _OTHER.sub("", json.dumps(expected))
    files = contents(without)
    assert files == contents(with_it)
    assert {"learned.json", "findings.html", "page.html"} <= set(files)


def test_commands_that_record_say_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN, encoding="utf-8")
    lines = (*RECORDING, "collect -- sh -c true")
    found = results(tmp_path, lines, has_torch=False)
    for line in RECORDING:
        status, out, errors = found[line]
        assert (status, out) == (2, "")
        assert "recording needs torch" in errors
        assert "fix: pip install 'traincheck[torch]'" in errors
    assert found["collect -- sh -c true"][0] == 0  # it may start a Python that has torch
