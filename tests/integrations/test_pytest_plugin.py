"""The fixture `traincheck_run`, in a pytest in another process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.test_packaging import PROJECT

TESTS = '''
import pytest, torch
from torch import nn

SCRIPT = """
import torch
from torch import nn
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range({steps}):
    {clear}
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
"""


def train(clears, model=None):
    model = model or nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        if clears:
            optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()


@pytest.fixture
def model():
    return nn.Linear(4, 2)


def test_good(traincheck_run):
    train(clears=True)


def test_bad(traincheck_run):
    train(clears=False)


def test_existing_model(traincheck_run, model):
    traincheck_run.add(model)
    train(clears=True, model=model)
    assert traincheck_run.report().steps >= 4
    assert not traincheck_run.findings


def test_without_training(traincheck_run):
    pass


@pytest.mark.traincheck(allow_empty=True)
def test_may_be_empty(traincheck_run):
    pass


@pytest.mark.traincheck(ignore=["TC201"])
def test_ignored(traincheck_run):
    train(clears=False)


@pytest.mark.traincheck(wrong=1)
def test_wrong_option(traincheck_run):
    pass


def test_own_failure(traincheck_run):
    train(clears=False)
    assert False, "its own"


def test_unwatched():
    train(clears=False)


@pytest.mark.parametrize("clear", ["optimizer.zero_grad()", "pass"])
def test_launch(traincheck_run, tmp_path, clear):
    (tmp_path / "train.py").write_text(SCRIPT.format(steps=6, clear=clear))
    report = traincheck_run.launch(tmp_path / "train.py", timeout=200)
    assert report["summary"]["steps"] == 6


@pytest.mark.traincheck(require_steps=50)
def test_launch_short(traincheck_run, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT.format(steps=6, clear="optimizer.zero_grad()"))
    traincheck_run.launch(tmp_path / "train.py")
'''
OUTCOMES = {
    "test_good": "",
    "test_bad": "TC201",
    "test_existing_model": "",
    "test_without_training": "nothing was checked: no",
    "test_may_be_empty": "",
    "test_ignored": "",
    "test_wrong_option": "traincheck.watch has no option 'wrong'",
    "test_own_failure": "its own",
    "test_unwatched": "",
    "test_launch[optimizer.zero_grad()]": "",
    "test_launch[pass]": "TC201 error",
    "test_launch_short": "6 of the 50 required steps were recorded",
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The message of each test; empty if it passed."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "test_training.py").write_text(TESTS)
    plugins = ["-p", "traincheck.integrations.pytest_plugin"]
    options = ["-q", "--strict-markers", "-p", "no:cacheprovider", "--junit-xml=out.xml"]
    subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, *options],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        check=False,
        timeout=600,
    )
    found = {}
    for case in ET.parse(folder / "out.xml").iter("testcase"):
        failed = [*case.findall("failure"), *case.findall("error")]
        found[case.attrib["name"]] = "\n".join(
            f"{one.attrib['message']}\n{one.text}" for one in failed
        )
    return found


@pytest.mark.parametrize("name", OUTCOMES)
def test_an_outcome(outcomes: dict[str, str], name: str) -> None:
    message = OUTCOMES[name]
    assert bool(outcomes[name]) is bool(message)
    assert message in outcomes[name]


def test_a_failure_shows_the_report(outcomes: dict[str, str]) -> None:
    text = outcomes["test_bad"]
    assert "fix" in text
    assert "test_training.py:2" in text
    assert "Call optimizer.zero_grad() once in every iteration" in text
    assert "TC201" not in outcomes["test_own_failure"]


def test_every_test_was_run(outcomes: dict[str, str]) -> None:
    assert set(outcomes) == set(OUTCOMES)


@pytest.mark.real_process
def test_pytest_finds_the_plugin_by_its_entry_point() -> None:
    (target,) = PROJECT["project"]["entry-points"]["pytest11"].values()
    code = f"import sys, {target}; print('torch' in sys.modules, 'pandas' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False False\n"
