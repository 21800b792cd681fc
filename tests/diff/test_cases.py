"""Programs with a known fault: the step, phase, name and cause of the first difference.

Each is recorded as it is right ("a"), with the fault ("b"), and with the fault repaired or with
something else in its place that has no effect ("twin"). The twin is the same as "a".
"""

from __future__ import annotations

import os
import random
import runpy
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.harness import command, run
from traincheck.collect.launch import run_manifest
from traincheck.collect.launch.settings import Settings
from traincheck.collect.observers import process_facts
from traincheck.collect.session.session import Session
from traincheck.diff.difference import Difference
from traincheck.diff.library import diff
from traincheck.schema.comparison.diff_view import DIFF_NEEDS

CASES = Path(__file__).parent / "cases"
OWN_FILES = process_facts.own_files
COLLECT = (sys.executable, "-m", "traincheck", "collect", "--quiet")
VIEW = ("--view", "diff", "--outputs", "all")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What the first difference of a program is.

    Attributes:
        step, phase, name, cause: of the first difference. says: texts of its explanation.
        view: options of the recording.
        ranks: how many processes train. is_within: they are compared with each other.
        variants: the arguments of the three recordings.
        options: of the comparison.
    """

    step: int
    phase: str
    name: str
    cause: str
    says: tuple[str, ...] = ()
    view: tuple[str, ...] = ()
    ranks: int = 1
    is_within: bool = False
    variants: tuple[str, str, str] = ("a", "b", "twin")
    options: dict[str, Any] = field(default_factory=dict)


EXPECTED = {
    "extra_draw": Case(
        step=0, phase="rng", name="torch generator", cause="draws", says=("1 draw ahead",),
        view=VIEW,
    ),
    "position_not_order": Case(
        step=4, phase="batch", name="loader0", cause="order-not-restored", ranks=2
    ),
    "restored_before_skip": Case(
        step=4, phase="batch", name="loader0", cause="augmentation-not-restored"
    ),
    "replays_epoch": Case(
        step=8, phase="batch", name="loader1", cause="loader-replays", says=("A at step 0",)
    ),
    "dropout_not_restored": Case(
        step=8, phase="rng", name="torch generator", cause="generator-not-restored",
        says=("draws ahead",), view=VIEW,
    ),
    "saved_in_bf16": Case(
        step=8, phase="parameter", name="Net.body.weight", cause="rounded-in-checkpoint"
    ),
    "threads": Case(
        step=0, phase="forward", name="Sequential.1", cause="arithmetic", says=("threads 1 | 6",),
        view=VIEW,
    ),
    "parameter_order": Case(
        step=8, phase="optimizer_state", name="Sequential.0.weight/exp_avg",
        cause="parameter-order",
    ),
    "unsorted_files": Case(step=0, phase="batch", name="loader0", cause="listing-order"),
    "unreduced_parameter": Case(
        step=0, phase="gradient", name="Linear.weight", cause="ranks-not-reduced", ranks=2,
        is_within=True,
    ),
    "statistics_per_rank": Case(
        step=0, phase="buffer", name="Sequential.1.running_mean", cause="statistics-per-rank",
        ranks=2, is_within=True,
    ),
    "local_target": Case(
        step=1, phase="parameter", name="Agent.target.body.weight", cause="ranks-drift", ranks=2,
        is_within=True,
    ),
    "schedule_not_restored": Case(
        step=8, phase="settings", name="SGD.lr", cause="schedule-not-restored"
    ),
    "nudged_weight": Case(
        step=3, phase="parameter", name="Net.head.weight", cause="written-outside"
    ),
    "accumulated": Case(
        step=0, phase="gradient", name="Net.body.weight", cause="gradient-scale", says=("4 times",),
        options={"rtol": 1e-6, "atol": 1e-7},
    ),
    "worker_seeds": Case(
        step=2, phase="batch", name="loader0", cause="worker-number",
        variants=("per-worker-2", "per-worker-4", "per-row-4"),
    ),
    "left_in_eval": Case(step=4, phase="forward", name="Net.body", cause="mode"),
    "fused": Case(step=0, phase="parameter", name="Net.body.weight", cause="update-arithmetic"),
}  # fmt: skip


def record(name: str, variant: str, folder: Path, case: Case) -> Path:
    """Record one variant of a program."""
    made = folder / variant
    if case.ranks == 1:
        return record_here(CASES / f"{name}.py", [variant, str(folder)], made, case)
    launch = (command("torchrun"), "--standalone", "--nproc-per-node", str(case.ranks))
    script = str(CASES / f"{name}.py")
    words = (*COLLECT, *case.view, "-o", str(made), "--", *launch, script, variant, str(folder))
    run(words, cwd=folder, out=made).expect()
    return made


def record_here(script: Path, words: list[str], made: Path, case: Case) -> Path:
    """Record a program in this process, which has torch: most of the time of others is its import.

    Its state is as that of a new process.
    """
    view: dict[str, Any] = (
        {"view": "diff", "outputs": "all", "needs": DIFF_NEEDS} if case.view else {}
    )
    settings = Settings(
        directory=str(made), run_id=made.name, whole=bool(view), source=True, **view
    )
    command = [sys.executable, str(script), *words]
    threads = torch.get_num_threads()
    manifest = run_manifest.started(settings, command, os.environ)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", command[1:])
        patch.setattr(sys, "path", [str(script.parent), *sys.path])
        # The files of other tests, some of them deleted, are none of this program's.
        patch.setattr(process_facts, "own_files", own_files_in(script.parent))
        random.seed(0), np.random.seed(0), torch.manual_seed(0)
        made.mkdir()
        run_manifest.write(made, manifest, is_first=True)
        session = Session(settings)
        session.start()
        try:
            with suppress(SystemExit), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                runpy.run_path(str(script), run_name="__main__")
        finally:
            session.stop()
            torch.set_num_threads(threads)
            sys.modules.pop("common", None)
    run_manifest.write(made, run_manifest.ended(manifest, made, 0))
    return made


def own_files_in(folder: Path) -> Callable[[set[str]], list[str]]:
    """What finds the source files of loaded modules that are in ``folder``."""
    return lambda seen: [p for p in OWN_FILES(seen) if Path(p).parent == folder.resolve()]


def compared(name: str, folder: Path) -> tuple[Difference, Difference]:
    """The run with the fault against the right one, and the twin against its right one."""
    case = EXPECTED[name]
    first, fault, twin = case.variants
    if case.is_within:
        runs = [record(name, variant, folder, case) for variant in (fault, twin)]
        return diff(runs[0], ranks=True), diff(runs[1], ranks=True)
    a = record(name, first, folder, case)
    b = record(name, fault, folder, case)
    like_a = record(name, "per-row-2", folder, case) if twin == "per-row-4" else a
    c = record(name, twin, folder, case)
    return diff(a, b, **case.options), diff(like_a, c, **case.options)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPECTED)
def test_the_first_difference_and_its_cause(name: str, tmp_path: Path) -> None:
    case = EXPECTED[name]
    found, twin = compared(name, tmp_path)
    assert found.first is not None
    first = (found.first.step, found.first.phase, found.first.name)
    assert first == (case.step, case.phase, case.name)
    assert found.cause is not None
    assert found.cause.code == case.cause
    said = " ".join((found.cause.text, *found.cause.details))
    assert [text for text in case.says if text not in said] == []
    assert twin.same, twin.to_dict()


def test_every_program_is_expected() -> None:
    assert {path.stem for path in CASES.glob("*.py")} - {"common"} == set(EXPECTED)
