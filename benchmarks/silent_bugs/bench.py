"""The benchmark of silent bugs: run cases and clean pipelines, judge, print.

    python -m benchmarks.silent_bugs [--mode rules,twin,transfer] [--case A13,B42] [--clean]
        [--jobs 2] [--view rules|full] [--json FILE] [--keep FOLDER]

Exits with 1 when a promise is broken: a RULE case missed, an alarm on a healthy run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import harness
from benchmarks.lab import FULL
from benchmarks.silent_bugs.case import (
    CLEAN,
    MARKS,
    Case,
    CaseError,
    clean_pipelines,
    launcher_of,
    load_cases,
)
from benchmarks.silent_bugs.judging import (
    AMONG_FIRST,
    MODES,
    RULES,
    TWIN,
    Line,
    broken_promises,
    judge,
    judge_clean,
    totals,
)
from benchmarks.silent_bugs.recordings import VIEWS, Recordings
from traincheck.errors import TraincheckError

# Invariants carried to other programs are learned from these six, together: unlike each other, so
# that what only one kind of program does is not taken for a law.
REFERENCES = (
    "amp_scaler",
    "lm_tied",
    "resume",
    "swa",
    "two_ranks_ddp",
    "workers_augment",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One line of the table."""

    mode: str
    case: Case | None = None
    pipeline: Path | None = None


def references(recordings: Recordings) -> Path:
    """Invariants of the pipelines that stand for other people's programs."""
    scripts = [CLEAN / f"{name}.py" for name in REFERENCES]
    runs = [recordings.run(script, launcher_of(script)) for script in scripts]
    return recordings.invariants(runs)


def run_case(case: Case, mode: str, recordings: Recordings, view: str) -> Line:
    """Record a case and its twin as a mode demands, and judge."""
    view = view if mode == RULES else FULL
    runs = [
        recordings.run(case.buggy, case.launcher, view=view, aborts=case.aborts),
        recordings.run(case.healthy, case.launcher, view=view),
    ]
    learned = None
    if mode == TWIN:
        learned = recordings.invariants(
            [recordings.run(case.healthy, case.launcher, is_reseeded=True)]
        )
    elif mode != RULES:
        learned = references(recordings)
    buggy, twin = (recordings.check(run, learned) for run in runs)
    return judge(case, buggy, twin)


def run_clean(script: Path, mode: str, recordings: Recordings, view: str) -> Line:
    """Record a clean pipeline and judge; in twin mode by what it does with other seeds."""
    launcher = launcher_of(script)
    run = recordings.run(script, launcher, view=view if mode == RULES else FULL)
    learned = None
    if mode == TWIN:
        learned = recordings.invariants([recordings.run(script, launcher, is_reseeded=True)])
    elif mode != RULES:
        learned = references(recordings)
    return judge_clean(recordings.check(run, learned))


def outcome(trial: Trial, recordings: Recordings, view: str) -> Line:
    """Run one trial; a program or command that fails is a result, not the end of the table."""
    line: Line = {"mode": trial.mode}
    try:
        if trial.case is not None:
            case = trial.case
            line |= {"group": "bug", "case": case.id, "title": case.title, "mark": case.mark}
            return {**line, **run_case(case, trial.mode, recordings, view)}
        assert trial.pipeline is not None
        line |= {"group": "clean", "case": trial.pipeline.stem}
        return {**line, **run_clean(trial.pipeline, trial.mode, recordings, view)}
    except (harness.CommandFailedError, subprocess.TimeoutExpired, TraincheckError) as error:
        return {**line, "error": str(error)}


def case_table(lines: Iterable[Line]) -> Table:
    """Bugs, a row for each mode."""
    table = Table("case", "title", "mark", "mode", "found", "step", "place", "by", "alarms on twin")
    for line in lines:
        if "error" in line:
            cells = ["[red]failed[/red]", "", "", "", ""]
        else:
            found = "yes" if line["found"] else "[red]no[/red]"
            shown = (line["step"], line["position"], line["code"], len(line["false_alarms"]) or "")
            cells = [found, *("" if value is None else str(value) for value in shown)]
        table.add_row(line["case"], line["title"], line["mark"], line["mode"], *cells)
    return table


def clean_table(lines: Iterable[Line]) -> Table:
    """Clean pipelines, a row for each mode."""
    table = Table("clean pipeline", "mode", "steps", "advice", "alarms")
    for line in lines:
        if "error" in line:
            cells = ["", "", "[red]failed[/red]"]
        else:
            cells = [
                str(line["steps"]),
                str(line["advice"] or ""),
                str(len(line["false_alarms"]) or ""),
            ]
        table.add_row(line["case"], line["mode"], *cells)
    return table


def totals_table(rows: Iterable[Line]) -> Table:
    """Sums for each mark."""
    among = f"among first {AMONG_FIRST}"
    table = Table("mode", "mark", "cases", "found", "first", among, "with alarms", "failed")
    for row in rows:
        found = ["", "", ""]
        if row["mark"] in MARKS:
            found = [str(row[key]) for key in ("found", "first", "among_first")]
        rest = [str(row[key] or "") for key in ("with_false_alarms", "failed")]
        table.add_row(row["mode"], row["mark"], str(row["cases"]), *found, *rest)
    return table


def show(lines: Sequence[Line], promises: Sequence[str]) -> None:
    """Print tables, then the promises that are broken."""
    console = Console(width=None if sys.stdout.isatty() else 140)
    for group, make in (("bug", case_table), ("clean", clean_table)):
        mine = [line for line in lines if line["group"] == group]
        if mine:
            console.print(make(mine))
    console.print(totals_table(totals(lines)))
    for promise in promises:
        console.print(f"broken: {promise}", markup=False, soft_wrap=True)


def trials(modes: Sequence[str], cases: Sequence[Case], pipelines: Sequence[Path]) -> list[Trial]:
    """Every line of the table, in its order."""
    lines = [Trial(mode=mode, case=case) for case in cases for mode in modes]
    return lines + [Trial(mode=mode, pipeline=path) for path in pipelines for mode in modes]


def words(allowed: Sequence[str]) -> Callable[[str], list[str]]:
    """A parser of words with commas between them."""

    def parse(text: str) -> list[str]:
        chosen = [word for word in text.split(",") if word]
        unknown = [word for word in chosen if allowed and word not in allowed]
        if unknown:
            raise argparse.ArgumentTypeError(
                f"{', '.join(unknown)}: not among {', '.join(allowed)}"
            )
        return chosen

    return parse


def options_of(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.silent_bugs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--mode", type=words(MODES), default=list(MODES), help="which of the modes")
    parser.add_argument("--case", type=words(()), help="only cases of these ids, no pipelines")
    parser.add_argument(
        "--clean",
        type=words(()),
        nargs="?",
        const=[],
        help="only clean pipelines, all or those named",
    )
    parser.add_argument("--jobs", type=int, default=2, help="trials at a time")
    parser.add_argument(
        "--view", choices=VIEWS, default=FULL, help="what is recorded for the mode rules"
    )
    parser.add_argument("--json", type=Path, help="write the result here")
    parser.add_argument("--keep", type=Path, help="keep recordings here, and use those that are")
    return parser.parse_args(argv)


def chosen(options: argparse.Namespace) -> tuple[list[Case], list[Path]]:
    """The cases and pipelines that a command line asks for.

    Raises:
        CaseError: there is no such case or pipeline.
    """
    cases, pipelines = load_cases(), clean_pipelines()
    wanted, clean = options.case, options.clean
    known = {case.id for case in cases} | {path.stem for path in pipelines}
    unknown = [word for word in [*(wanted or []), *(clean or [])] if word not in known]
    if unknown:
        raise CaseError(f"there is no {', '.join(unknown)}")
    if wanted is not None or clean is not None:
        cases = [case for case in cases if case.id in (wanted or [])]
    if clean is None:
        pipelines = pipelines if wanted is None else []
    elif clean:
        pipelines = [path for path in pipelines if path.stem in clean]
    return cases, pipelines


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; 1 when a promise is broken, 2 when it cannot be run."""
    options = options_of(argv)
    try:
        cases, pipelines = chosen(options)
    except CaseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(options.jobs) as pool:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        recordings = Recordings(folder)
        todo = trials(options.mode, cases, pipelines)
        lines = list(pool.map(lambda trial: outcome(trial, recordings, options.view), todo))
    promises = broken_promises(lines)
    show(lines, promises)
    harness.write_json(
        options.json,
        {
            "machine": harness.describe_machine(),
            "view": options.view,
            "totals": totals(lines),
            "broken": promises,
            "lines": lines,
        },
    )
    return int(bool(promises))
