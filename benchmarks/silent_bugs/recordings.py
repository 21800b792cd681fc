"""Recordings of cases and clean pipelines, made once each, and what was learned from them."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import harness
from benchmarks.lab import FULL, Report, checked, made_once
from benchmarks.silent_bugs.case import CLEAN, FOLDER

VIEWS = ("rules", FULL)
TWIN = "train.py"
RESEEDED = FOLDER / "_reseeded.py"

_TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
_TIMEOUT_S = 120
_PATIENT_S = 600  # a start with many imports takes minutes on a busy machine


class Recordings:
    """Runs by script, view and seed, in one folder; threads may share one.

    is_complete: nothing is recorded; what the folder does not hold is an error.
    """

    def __init__(self, folder: Path, *, is_complete: bool = False) -> None:
        self.folder = folder
        self.is_complete = is_complete

    def kept(self, script: Path, launcher: str, *, is_reseeded: bool = False) -> Path:
        """A run as ``traincheck run --keep`` records it, in an empty working directory.

        is_reseeded: with other seeds than those the script names.

        Raises:
            CommandFailedError: the program failed, or `is_complete` and it is not recorded.
        """
        name = _name(script) + ("-reseeded" if is_reseeded else "")
        if self.is_complete and not (self.folder / f"{name}-kept").exists():
            raise harness.CommandFailedError(f"{name} is not recorded in {self.folder}")
        program = script
        if is_reseeded:
            staged = made_once(
                self.folder / f"{name}.src", lambda out: _stage(script, out, is_reseeded=True)
            )
            program = staged / _program(script)

        def record(out: Path) -> None:
            with tempfile.TemporaryDirectory() as cwd:
                words = ["run", "-o", out, "--", *words_of(program, launcher)]
                argv = [harness.command("traincheck"), *words]
                done = harness.run(argv, cwd=Path(cwd), timeout_s=_PATIENT_S, out=out)
            manifest = out / "manifest.json"
            if not manifest.is_file() or json.loads(manifest.read_bytes())["exit_status"] != 0:
                # The status of the command may stand for findings, or for nothing to check
                raise harness.CommandFailedError(f"{script}: {done.stderr[-2000:]}")

        return made_once(self.folder / f"{name}-kept", record)

    def run(
        self,
        script: Path,
        launcher: str,
        *,
        view: str = FULL,
        is_reseeded: bool = False,
        reseeding: int = 1,
        more: Sequence[str] = (),
        aborts: bool = False,
    ) -> Path:
        """A recorded run.

        is_reseeded: with other seeds than those the script names. reseeding: which other seeds.
        more: further options of the recorder. aborts: the program is known to end with an error;
        what it left is kept.
        """
        seed = f"-reseeded{'' if reseeding == 1 else reseeding}" if is_reseeded else ""
        name = _name(script) + seed
        staged = made_once(
            self.folder / f"{name}.src", lambda out: _stage(script, out, is_reseeded=is_reseeded)
        )

        def record(out: Path) -> None:
            done = harness.collect(
                words_of(staged / _program(script), launcher),
                out,
                env={"BENCH_RESEEDING": reseeding},
                rules=view == "rules",
                more=["--quiet", *more],
                timeout_s=_TIMEOUT_S,
            )
            if not (aborts and out.is_dir()):
                done.expect()

        return made_once(self.folder / f"{name}-{view}{''.join(more)}", record)

    def invariants(self, runs: Sequence[Path]) -> Path:
        """The common properties of these runs."""
        digest = hashlib.sha256(" ".join(run.name for run in runs).encode()).hexdigest()[:10]
        out = self.folder / f"{digest}.invariant.json"
        return made_once(out, lambda path: harness.infer(runs, path, timeout_s=_TIMEOUT_S))

    def check(self, run: Path, invariants: Path | None) -> Report:
        """By invariants alone, or by rules alone when there are none."""
        return checked(run, invariants, rules=invariants is None)


def words_of(script: Path, launcher: str) -> list[str | Path]:
    """The command that starts a program."""
    return [sys.executable, *(_TORCHRUN if launcher == "torchrun" else ()), script]


def _name(script: Path) -> str:
    """The name of a recording, which another content of the script does not have."""
    content = hashlib.sha256(script.read_bytes()).hexdigest()[:8]
    return f"{script.parent.name}-{script.stem}-{content}"


def _program(script: Path) -> str:
    """The name a script runs under: what is learned of a program is kept to programs of its name.

    Twins share one, other programs have their own.
    """
    return script.name if script.parent == CLEAN else TWIN


def _stage(script: Path, out: Path, *, is_reseeded: bool) -> None:
    out.mkdir()
    shutil.copy(RESEEDED if is_reseeded else script, out / _program(script))
    if is_reseeded:
        (out / "program").mkdir()
        shutil.copy(script, out / "program" / _program(script))
