"""Asking for help loads no package that takes long. Modules are looked at, not clocks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from traincheck.cli.main import main as group

pytestmark = pytest.mark.real_process

HEAVY = ("torch", "pandas", "pyarrow", "numpy", "sklearn")
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
