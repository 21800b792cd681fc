"""Another version of traincheck to measure: a checkout, or a Python that has it installed."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import harness

_ASK = "import traincheck, traincheck.cli as cli; print(traincheck.__file__); print(cli.__file__)"


@dataclass(frozen=True, slots=True)
class Checkout:
    """One version of traincheck. python: runs the commands. env: selects the version."""

    python: str = sys.executable
    env: dict[str, str] = field(default_factory=dict)

    def describe(self, scratch: Path) -> dict[str, Any]:
        """Where its modules are and, in a git checkout, its commit.

        Raises:
            CommandFailedError: this Python cannot import traincheck.
        """
        argv = [self.python, "-c", _ASK]
        package, cli = harness.run(argv, env=self.env, cwd=scratch).expect().stdout.split()
        home = Path(package).resolve().parents[1]
        argv = ["git", "-C", str(home), "describe", "--always", "--dirty", "--exclude=*"]
        commit = subprocess.run(argv, capture_output=True, text=True, check=False)
        found = {"package": str(home), "commit": commit.stdout.strip() or None}
        if Path(cli).resolve().parents[1] not in (home, Path(package).resolve().parent):
            raise harness.CommandFailedError(
                f"two versions of traincheck are mixed: {package} and {cli}"
            )
        return found


def checkout_at(path: Path, scratch: Path) -> Checkout:
    """The traincheck of a Python interpreter, or of a checkout that need not be installed.

    A checkout runs with the present Python and its packages. scratch: an empty folder to keep.

    Raises:
        CommandFailedError: ``path`` is neither.
    """
    if path.is_file():
        return Checkout(python=str(path.absolute()))
    package = path.absolute() / "traincheck"
    if not (package / "__init__.py").is_file():
        raise harness.CommandFailedError(
            f"{path} is neither a Python interpreter nor a checkout of traincheck\n"
            "fix: name VENV/bin/python, or a folder that holds traincheck/__init__.py"
        )
    linked = scratch / "traincheck"  # the mapping of pyproject.toml, as folders
    linked.mkdir(parents=True)
    for part in package.iterdir():
        (linked / part.name).symlink_to(part)
    for part in (path.absolute() / "cli", path.absolute() / "configs"):
        if part.is_dir():
            (linked / part.name).symlink_to(part)
    return Checkout(env={"PYTHONPATH": str(scratch)})
