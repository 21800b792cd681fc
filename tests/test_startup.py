"""Commands load only what they need. Modules are counted here, not seconds.

benchmarks/command_startup.py measures the seconds.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders import healthy_run
from traincheck.cli.main import main as group
from traincheck.store.writer import TraceWriter

pytestmark = pytest.mark.real_process

HEAVY = ("torch", "pandas", "pyarrow", "numpy", "sklearn")
# What commands do without, beside the heavy packages.
UNUSED_BY_VERSION = (
    "rich",
    "jinja2",
    "msgspec",
    "importlib.metadata",
    "traincheck.api",
    "traincheck.check",
    "traincheck.rules",
    "traincheck.relations",
    "traincheck.schema.events",
)
UNUSED_BY_CHECK = (
    "jinja2",
    "yaml",
    "asyncio",
    "multiprocessing",
    "traincheck.relations.registry",  # without invariants
    "traincheck.infer",
    "traincheck.diff",
    "traincheck.page.build",
    "traincheck.store.columnar",
    "traincheck.collect.session",
)
ENTRIES = {
    "traincheck": "main",
    "traincheck-collect": "collect_main",
    "traincheck-infer": "infer_main",
    "traincheck-check": "check_main",
}
PROGRAM = """
import sys
from traincheck.cli import main as module
sys.argv = {argv!r}
try:
    getattr(module, {entry!r})()
except SystemExit as stop:
    assert not stop.code, stop.code
print("heavy:", [name for name in {heavy!r} if name in sys.modules], file=sys.stderr)
"""


def argument_lists() -> list[list[str]]:
    commands = [[name] for name in ENTRIES]
    return commands + [["traincheck", name] for name in sorted(group.commands)]


@pytest.mark.parametrize("argv", argument_lists(), ids=" ".join)
def test_help_loads_nothing_heavy(argv: list[str], tmp_path: Path) -> None:
    code = PROGRAM.format(argv=[*argv, "--help"], entry=ENTRIES[argv[0]], heavy=HEAVY)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Usage:" in done.stdout
    assert "heavy: []" in done.stderr


def test_the_package_loads_nothing_heavy(tmp_path: Path) -> None:
    code = f"import sys, traincheck; print([n for n in {HEAVY!r} if n in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def loaded(argv: list[str], names: tuple[str, ...], folder: Path) -> str:
    """Which of some modules a command loads, as the child prints them."""
    code = PROGRAM.format(argv=argv, entry=ENTRIES[argv[0]], heavy=names)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stderr.rpartition("heavy: ")[2].strip()


def test_the_version_is_printed_without_the_checks(tmp_path: Path) -> None:
    assert loaded(["traincheck", "--version"], (*HEAVY, *UNUSED_BY_VERSION), tmp_path) == "[]"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with TraceWriter(tmp_path / "run") as writer:
        for event in healthy_run(12):
            writer.emit(event)
    return tmp_path / "run"


def test_a_check_by_rules_loads_what_it_needs(run: Path, tmp_path: Path) -> None:
    names = (*HEAVY, *UNUSED_BY_CHECK, "traincheck.rules.table")
    found = loaded(["traincheck", "check", "-t", str(run)], names, tmp_path)
    assert found == "['traincheck.rules.table']"


def test_relations_are_loaded_where_one_is_selected(run: Path, tmp_path: Path) -> None:
    argv = ["traincheck", "check", "-t", str(run), "--ignore", "order"]
    found = loaded(argv, ("traincheck.relations.registry", *HEAVY), tmp_path)
    assert found == "['traincheck.relations.registry']"
