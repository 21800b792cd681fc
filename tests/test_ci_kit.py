"""The examples for continuous integration do what docs/ci.md says: their commands are run."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import warm
from tests.builders import healthy_run
from traincheck.cli import main as entry
from traincheck.store.writer import TraceWriter

ROOT = Path(__file__).parents[1]
KIT = ROOT / "examples" / "ci"
PAGE = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
HOOKS = {hook["id"]: hook for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())}
WORKFLOW = yaml.safe_load((KIT / "github-workflow.yml").read_text())
TRAIN = """
import argparse, os, torch
from torch import distributed, nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=10)
parser.add_argument("--broken", action="store_true")
given = parser.parse_args()
torch.manual_seed(int(os.environ.get("RANK", 0)))
model = nn.Linear(4, 2)
if "RANK" in os.environ:
    distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(given.steps):
    if not given.broken:
        optimizer.zero_grad()
    nn.functional.cross_entropy(model(torch.randn(8, 4)), torch.arange(8) % 2).backward()
    optimizer.step()
"""


def bash(command: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command where `traincheck` and `torchrun` are those of this interpreter."""
    path = os.pathsep.join((str(warm.commands()), str(folder / ".tools"), os.environ["PATH"]))
    return subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": path, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )


class Runner:
    """Runs the steps of the workflow that are commands, as a runner of GitHub does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "train.py").write_text(TRAIN)
        self.summary = folder / "step-summary.md"
        self.output = ""

    def run(self, *, branch: str, train: str) -> list[str]:
        """The names of the steps that were run; a step that fails ends with ``!``."""
        done, is_failed = [], False
        for step in WORKFLOW["jobs"]["silent-bugs"]["steps"]:
            condition = step.get("if", "success()")
            if "github.ref" in condition:
                is_due = not is_failed and branch == "main"
            else:
                is_due = "cancelled" in condition or is_failed is (condition == "failure()")
            if not is_due or "run" not in step or step["name"] == "Install":
                continue
            found = bash(
                step["run"], self.folder, TRAIN=train, GITHUB_STEP_SUMMARY=str(self.summary)
            )
            self.output += found.stdout + found.stderr
            is_failed = is_failed or found.returncode != 0
            done.append(f"{step['name']}{'!' if found.returncode else ''}")
        return done


@pytest.mark.slow
def test_the_workflow_learns_on_main_and_stops_a_broken_change(tmp_path: Path) -> None:
    first = Runner(tmp_path)
    steps = first.run(branch="main", train="train.py --steps 8")
    assert steps == ["Train and check", "Summary", "Learn from the main branch"], first.output
    learned = (tmp_path / "invariants" / "invariant.json").read_text()
    assert json.loads(learned)["invariants"]
    assert first.summary.read_text().startswith("## traincheck: no findings")

    for folder in (tmp_path / "traces").iterdir():
        folder.rename(tmp_path / f"old-{folder.name}")  # another runner has a new checkout
    (tmp_path / "traincheck.sarif").unlink()
    change = Runner(tmp_path)
    change.summary.unlink()
    steps = change.run(branch="change", train="train.py --steps 8 --broken")
    assert steps == ["Train and check!", "Summary"], change.output
    assert "::error file=train.py,line=19,title=TC201" in change.output
    assert "TC201" in change.summary.read_text()
    (result, *_) = json.loads((tmp_path / "traincheck.sarif").read_text())["runs"][0]["results"]
    assert result["ruleId"] == "TC201"
    assert (tmp_path / "invariants" / "invariant.json").read_text() == learned


def test_the_workflow_is_well_formed() -> None:
    steps = WORKFLOW["jobs"]["silent-bugs"]["steps"]
    assert all(("run" in step) is not ("uses" in step) for step in steps)
    assert all(
        re.fullmatch(r"[\w-]+/[\w/-]+@v\d+", step["uses"]) for step in steps if "uses" in step
    )
    uploaded = next(step["with"] for step in steps if step.get("name") == "Code scanning")
    command = next(step["run"] for step in steps if step.get("name") == "Train and check")
    assert f"sarif={uploaded['sarif_file']}" in command
    restore, save = (
        next(
            step["with"] for step in steps if step.get("uses", "").startswith(f"actions/cache/{n}")
        )
        for n in ("restore", "save")
    )
    assert (restore["path"], restore["key"]) == (save["path"], save["key"])
    assert restore["key"].startswith(restore["restore-keys"])


def hook(name: str, folder: Path, files: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a hook as pre-commit does: the entry, then the names of files."""
    words = [*shlex.split(HOOKS[name]["entry"]), *files]
    return bash(shlex.join(words), folder)


def test_hooks_have_what_pre_commit_requires() -> None:
    for one in HOOKS.values():
        assert {"id", "name", "entry", "language"} <= set(one)
    pattern, exclude = (HOOKS["traincheck-invariants"][key] for key in ("files", "exclude"))
    for name, is_checked in {
        "invariant.json": True,
        "ci/invariants-v2.json": True,
        "invariant.json.stats": False,
        "invariant.json.dropped.json": False,
        "package.json": False,
    }.items():
        is_found = bool(re.search(pattern, name)) and not re.search(exclude, name)
        assert is_found is is_checked, name


@pytest.mark.slow
def test_the_hook_that_trains(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    assert hook("traincheck-run", tmp_path, ["train.py", "--steps", "6"]).returncode == 0
    found = hook("traincheck-run", tmp_path, ["train.py", "--broken"])
    assert found.returncode == 1
    assert "TC201 error" in found.stderr


def test_the_hook_for_invariant_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with TraceWriter(tmp_path / "run") as writer:
        for event in healthy_run(6):
            writer.emit(event)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["traincheck-infer", "-t", "run", "-o", "good.json"])
    assert entry.infer_main() == 0
    (tmp_path / "bad.json").write_text('{"invariants": 1}')
    assert hook("traincheck-invariants", tmp_path, ["good.json", "good.json"]).returncode == 0
    found = hook("traincheck-invariants", tmp_path, ["good.json", "bad.json"])
    assert found.returncode == 1
    assert "bad.json" in found.stderr


SCONTROL = '#!/bin/sh\ncase $1 in show) echo localhost;; *) echo "$@" >> updates;; esac\n'
SRUN = '#!/bin/sh\nshift\nexec "$@"\n'


@pytest.mark.slow
@pytest.mark.parametrize("broken", [False, True])
def test_the_job_of_slurm(tmp_path: Path, broken: bool) -> None:
    """With stand-ins for srun and scontrol, and two ranks on this machine."""
    (tmp_path / ".tools").mkdir()
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (tmp_path / ".tools" / name).write_text(text)
        (tmp_path / ".tools" / name).chmod(0o755)
    text = TRAIN.replace('"store_true")', f'"store_true", default={broken})')
    (tmp_path / "train.py").write_text(text)
    script = (KIT / "slurm.sh").read_text().replace(":29500", ":0")
    job = {"SLURM_JOB_ID": "7", "SLURM_NODEID": "0", "SLURM_NNODES": "1", "NPROC": "2"}
    done = bash(script, tmp_path, SLURM_JOB_NODELIST="localhost", **job)
    assert done.returncode == int(broken), done.stderr
    report = (tmp_path / "summary-7-0.md").read_text()
    assert "2 ranks" in report
    assert ("TC201" in report) is broken
    assert (tmp_path / "updates").exists() is broken
    if broken:
        assert "update JobId=7 Comment=traincheck-finding" in (tmp_path / "updates").read_text()


def test_the_image_starts_a_command_of_ours() -> None:
    lines = (KIT / "Dockerfile").read_text().splitlines()
    words: list[str] = []
    for name in ("ENTRYPOINT", "CMD"):
        (found,) = [line for line in lines if line.startswith(name)]
        words += json.loads(found.removeprefix(name))
    assert words[:2] == ["traincheck", "run"]
    command = entry.load("run")
    parsed = command.make_context("traincheck run", words[2:], resilient_parsing=True)
    assert parsed.params["reports"] == ("markdown=/app/summary.md",)


def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    (text,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    (tmp_path / "test_page.py").write_text(text)
    options = "-q -p no:cacheprovider -p traincheck.integrations.pytest_plugin"
    command = f"{sys.executable} -m pytest {options} --strict-markers"
    done = bash(command, tmp_path, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    assert "2 passed" in done.stdout, done.stdout


def test_the_page_names_every_file_of_the_kit() -> None:
    names: list[Any] = [path.name for path in KIT.iterdir()]
    assert sorted(names) == ["Dockerfile", "github-workflow.yml", "slurm.sh"]
    for name in (*names, *HOOKS):
        assert name in PAGE
