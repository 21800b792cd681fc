"""Drive an installed research tool (traincheck 0.2.0 on PyPI) for comparison, by its commands only.

It writes a copy of the script beside the script, so it is given a copy of the workloads. Its
environment needs what these import, too: ``pip install traincheck==0.2.0 scikit-learn``.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import harness
from benchmarks.harness import WORKLOADS, Done, Variables


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """The tool in a separate virtual environment. python: that environment's interpreter."""

    python: Path
    folder: Path

    def collect(
        self, name: str, out: Path, *, env: Variables, invariants: Path | None = None
    ) -> Done:
        """Record a workload; with invariants selectively, every step."""
        home = self._workloads()
        argv: list[str | Path] = [self._command("collect"), "--pyscript", home / f"{name}.py"]
        argv += ["--models-to-track", "model", "--output-dir", out]
        if invariants is not None:
            argv += ["-i", invariants, "--sampling-interval", "1"]
        places = {"UP_HOME": str(home / "common.py")}
        return self._run(argv, env={**env, **places})

    def infer(self, trace: Path, out: Path) -> Done:
        """Learn invariants from one recorded run."""
        argv: list[str | Path] = [self._command("infer"), "-f", trace, "-o", out]
        return self._run(argv)

    def check(self, trace: Path, invariants: Path, out: Path) -> Done:
        """Check one recorded run."""
        argv: list[str | Path] = [self._command("check"), "-f", trace, "-i", invariants]
        return self._run([*argv, "-o", out])

    def _run(self, argv: Sequence[str | Path], env: Variables | None = None) -> Done:
        # traincheck on PYTHONPATH would be imported instead of its package of the same name
        apart = {**(env or {}), "PYTHONPATH": ""}
        return harness.run(argv, env=apart, cwd=self.folder, timeout_s=1800).expect()

    def _command(self, name: str) -> Path:
        return self.python.with_name(f"traincheck-{name}")

    def _workloads(self) -> Path:
        home = self.folder / "workloads"
        if not home.exists():
            shutil.copytree(WORKLOADS, home)
        return home
