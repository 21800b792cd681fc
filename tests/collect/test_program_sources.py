"""Copies of the user's source files: which are there, who can read them, what they do not tell."""

from __future__ import annotations

import importlib
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.collect.recording import Recording, recording
from traincheck.collect import masking
from traincheck.collect.observers import process_facts
from traincheck.schema.layout import SOURCES
from traincheck.schema.observations.processes import Sources

MODULE = "def double(x):\n    return 2 * x\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path with one module, ``layers_of_mine``, that is not imported yet."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "layers_of_mine.py").write_text(MODULE)
    monkeypatch.setattr(process_facts, "MOST_FILES", 1 << 20)  # tests import many
    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()
    monkeypatch.setitem(sys.modules, "layers_of_mine", None)
    del sys.modules["layers_of_mine"]
    return folder


def train() -> None:
    """One step."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    importlib.import_module("layers_of_mine").double(model(torch.ones(3, 2)).sum()).backward()
    optimizer.step()


def told(run: Recording) -> dict[str, str]:
    """The copies by path, of all records."""
    found: dict[str, str] = {}
    for mark in run.marks(Sources.text):
        found.update(mark.data["files"])
    return found


def test_an_imported_module_is_copied(project: Path, tmp_path: Path) -> None:
    with recording(tmp_path / "run", source=True) as run:
        train()
    name = told(run)[os.path.realpath(project / "layers_of_mine.py")]
    copy = tmp_path / "run" / SOURCES / name
    assert copy.read_text() == MODULE
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert stat.S_IMODE(copy.parent.stat().st_mode) == 0o700


def test_nothing_of_installed_packages_is_copied(project: Path, tmp_path: Path) -> None:
    with recording(tmp_path / "run", source=True) as run:
        train()
    paths = told(run)
    assert paths
    assert not [path for path in paths if "-packages/" in path or "/traincheck/" in path]
    assert os.path.realpath(subprocess.__file__) not in paths


def test_nothing_is_copied_where_it_is_off(project: Path, tmp_path: Path) -> None:
    with recording(tmp_path / "run", source=False) as run:
        train()
    assert not told(run)
    assert not (tmp_path / "run" / SOURCES).exists()


def test_a_file_that_was_written_after_the_start_is_told(project: Path, tmp_path: Path) -> None:
    with recording(tmp_path / "run", source=True) as run:
        path = project / "layers_of_mine.py"
        path.write_text(MODULE.replace("2", "3"))
        os.utime(path, (path.stat().st_atime, path.stat().st_mtime + 60))
        train()
    changed = [one for mark in run.marks(Sources.text) for one in mark.data["changed"]]
    assert os.path.realpath(path) in changed


def test_a_file_that_is_too_large_is_counted(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_facts, "MOST_BYTES", len(MODULE) - 1)
    with recording(tmp_path / "run", source=True) as run:
        train()
    assert os.path.realpath(project / "layers_of_mine.py") not in told(run)
    assert max(mark.data["left_out"] for mark in run.marks(Sources.text)) > 0


def test_the_space_that_is_left_for_the_program_is_not_used(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_facts, "reserved", lambda total: total)
    with recording(tmp_path / "run", source=True) as run:
        train()
    assert not told(run)
    assert not list((tmp_path / "run" / SOURCES).iterdir())


def test_a_link_in_the_place_of_a_copy_is_not_followed(project: Path, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / SOURCES).symlink_to(tmp_path / "elsewhere")
    with recording(tmp_path / "run", source=True):
        train()
    assert target.read_text() == "mine"
    assert not (tmp_path / "elsewhere").exists()


SECRET_LINES = [
    'password = "hunter2"',
    'settings["password"] = "hunter2"',
    'settings = {"api_key": "hunter2"}',
    'login(token="hunter2")',
    'os.environ.setdefault("HF_TOKEN", "hunter2")',
    'def login(password="hunter2"): ...',
    "# key: sk-proj-a8Bf39dKq02LmX9zPwE7hunter2",
    'url = "https://me:hunter2@example.com/"',
    'password = """hunter2\nhunter2"""',
]
PLAIN_LINES = [
    'pad_token = "<pad>"',
    "lr = 0.1  # the rate of the paper",
    'name = "a sentence of the program"',
    "x = {1: 2, 'key': query @ key}",
    'tokens = tokenizer("hello world")',
]


@pytest.mark.parametrize("line", SECRET_LINES)
def test_a_secret_is_masked_and_lines_stay(line: str) -> None:
    code = f"import os\n\n{line}\nlr = 0.1\n"
    shown = masking.source(code.encode()).decode()
    assert "hunter2" not in shown
    assert shown.split("\n").index("lr = 0.1") == code.split("\n").index("lr = 0.1")
    compile(shown, "shown", "exec")


@pytest.mark.parametrize("line", PLAIN_LINES)
def test_other_code_stays(line: str) -> None:
    assert masking.source(line.encode()).decode() == line


@pytest.mark.parametrize("content", [b"def (:\n", b"\xff\xfe\x00", b"x = '''\n"])
def test_a_file_that_is_not_python_is_refused_or_kept(content: bytes) -> None:
    """A file whose secrets cannot be told from its code has no copy."""
    secret = content + b"password = 'hunter2'\n"
    try:
        shown = masking.source(secret)
    except ValueError:
        return
    assert b"hunter2" not in shown
