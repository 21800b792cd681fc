"""What `make demo` promises: the planted bug is found by name, and its healthy twin is quiet."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.lab import alarms
from tests import warm

EXAMPLES = Path(__file__).parents[1] / "examples"
BUILT = "    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)\n"
REPLACED = "    model.head = nn.Linear(64, 10)\n"

pytestmark = pytest.mark.slow


def shell(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    path = f"{warm.commands()}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the demo has run."""
    folder = tmp_path_factory.mktemp("demo")
    done = shell(folder, "bash", str(EXAMPLES / "demo.sh"), "out")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "out"


def check(folder: Path, *options: str) -> dict[str, Any]:
    done = shell(folder, "traincheck-check", *options, "--format", "json")
    assert done.returncode in (0, 1), done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_the_first_finding_names_the_new_head(demo: Path) -> None:
    report = json.loads((demo / "report.json").read_text(encoding="utf-8"))
    first = report["first_violation"]
    told = " ".join([first["title"], first["message"], first["subject"]["variable"]])
    assert "Classifier.head.weight" in told


def test_the_bug_is_found_at_the_first_step_of_fine_tuning(demo: Path) -> None:
    report = json.loads((demo / "report.json").read_text(encoding="utf-8"))
    first = report["first_violation"]
    batches = first_step_of_the_second_optimizer(demo / "traces" / "buggy")
    assert first["first_step"] == batches


def first_step_of_the_second_optimizer(run: Path) -> int:
    steps = [
        record["s"]
        for path in run.glob("events-*.jsonl")
        for record in map(json.loads, path.read_text(encoding="utf-8").splitlines())
        if record["k"] == "call" and record.get("owner") == "opt1"
    ]
    return min(steps)


def test_the_twin_that_replaces_the_head_first_is_quiet(demo: Path) -> None:
    source = (EXAMPLES / "train_digits_buggy.py").read_text(encoding="utf-8")
    assert BUILT + REPLACED in source
    folder = demo.parent
    (folder / "twin.py").write_text(source.replace(BUILT + REPLACED, REPLACED + BUILT))
    (folder / "train_digits.py").write_text((EXAMPLES / "train_digits.py").read_text())
    done = shell(folder, "traincheck-collect", "-p", "twin.py", "-o", "twin")
    assert done.returncode == 0, done.stderr
    assert alarms(check(folder, "-t", "twin", "-i", "out/invariant.json")) == []
