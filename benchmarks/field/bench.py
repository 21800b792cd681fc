"""The field benchmark: record public reports and healthy pipelines, check, judge, print.

    python -m benchmarks.field [--mode rules,probe,twin,facts,contrast]
        [--population known,fresh] [--case NAME,...] [--healthy [NAME,...]] [--references N]
        [--view rules|full] [--json FILE] [--markdown FILE] [--keep FOLDER | --recorded FOLDER]

Modes: ``rules`` records a program and applies the built-in rules. ``probe`` records it with
``--probe`` and applies them, so it shows rules and probes together. ``twin`` applies only the
invariants learned from a run of the clean program with other seeds, or from several. ``facts``
records both as ``traincheck run`` does, and judges the lines of the buggy card that the clean card
does not have. ``contrast`` is ``traincheck facts A B``: the clean program with another seed against
the buggy one. ``--recorded`` judges kept recordings of these two modes and records nothing.

Exits with 1 when a clean program or healthy pipeline has a finding of severity warning or above,
or a program fails; with 2 when a name is unknown.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import harness
from benchmarks.field.cards import (
    Cards,
    judge_card,
    judge_contrast,
    judge_healthy_card,
    judge_healthy_contrast,
    markdown,
)
from benchmarks.field.case import (
    FRESH,
    KNOWN,
    FieldCase,
    FieldCaseError,
    healthy_pipelines,
    load_cases,
)
from benchmarks.field.judging import (
    CONTRAST,
    FACTS,
    MODES,
    NOTHING,
    OTHER,
    PROBE,
    RIGHT,
    TWIN,
    Line,
    judge,
    judge_healthy,
    totals,
)
from benchmarks.lab import FULL, Report
from benchmarks.silent_bugs.recordings import VIEWS, Recordings
from traincheck.errors import TraincheckError

HEALTHY = "healthy"
NO_PROBE = "this version of traincheck-collect has no option --probe"


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """Options of a run. view: what is recorded for rules and probes. references: runs to learn."""

    view: str
    references: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One line of the table: a case, or else a healthy pipeline, in one mode."""

    mode: str
    case: FieldCase | None = None
    pipeline: Path | None = None


@cache
def can_probe() -> bool:
    """Whether the recorder has probes."""
    done = harness.run([harness.command("traincheck-collect"), "--help"])
    return "--probe" in done.stdout


def reference(recordings: Recordings, script: Path, launcher: str, count: int) -> Path:
    """Invariants of some runs of a program with other seeds."""
    more = ["--probe"] if can_probe() else []
    runs = [
        recordings.run(script, launcher, is_reseeded=True, reseeding=number, more=more)
        for number in range(1, count + 1)
    ]
    return recordings.invariants(runs)


def reports(
    recordings: Recordings, scripts: Sequence[Path], launcher: str, mode: str, how: How
) -> list[Report]:
    """Record and check programs in one mode; the last one is the reference of the mode twin."""
    learned = None
    if mode == TWIN:
        learned = reference(recordings, scripts[-1], launcher, how.references)
    view = FULL if mode == TWIN else how.view
    more = ["--probe"] if mode == PROBE or (mode == TWIN and can_probe()) else []
    runs = [recordings.run(script, launcher, view=view, more=more) for script in scripts]
    return [recordings.check(run, learned) for run in runs]


def judged_cards(trial: Trial, cards: Cards) -> Line:
    """The result of a trial in the mode *facts* or *contrast*."""
    case, pipeline = trial.case, trial.pipeline
    script = case.clean if case else pipeline
    launcher = case.launcher if case else "python"
    assert script is not None
    clean = cards.seen(script, launcher)
    buggy = cards.seen(case.buggy, launcher) if case else None
    if trial.mode == FACTS:
        if case is None or buggy is None:
            return judge_healthy_card(clean)
        return judge_card(case, buggy, clean)
    good = cards.seen(script, launcher, is_reseeded=True)
    if case is None or buggy is None:
        return judge_healthy_contrast(good, clean)
    return judge_contrast(case, good, buggy, clean)


def outcome(trial: Trial, recordings: Recordings, how: How, cards: Cards) -> Line:
    """Run one trial. A program that fails is a result, not the end of the table."""
    case, pipeline, mode = trial.case, trial.pipeline, trial.mode
    line: Line = {"mode": mode, "population": case.population if case else HEALTHY}
    line["name"] = case.name if case else pipeline.stem if pipeline else ""
    if mode == PROBE and not can_probe():
        return {**line, "skipped": NO_PROBE}
    try:
        if mode in (FACTS, CONTRAST):
            return {**line, **judged_cards(trial, cards)}
        if case is not None:
            buggy, clean = reports(recordings, [case.buggy, case.clean], case.launcher, mode, how)
            return {**line, **judge(case, buggy, clean)}
        assert pipeline is not None
        return {**line, **judge_healthy(*reports(recordings, [pipeline], "python", mode, how))}
    except (harness.CommandFailedError, subprocess.TimeoutExpired, TraincheckError) as error:
        missing = re.search(r"ModuleNotFoundError: (.*)", str(error))
        return {**line, "skipped": missing[1]} if missing else {**line, "error": str(error)}


def case_table(lines: Sequence[Line]) -> Table:
    """Cases, a row for each mode."""
    table = Table("case", "mode", "found", "by", "place", "all codes", "alarms on clean", "lines")
    for line in lines:
        cells = ["[red]failed[/red]" if "error" in line else "not run", *[""] * 5]
        if "verdict" in line:
            color = {RIGHT: "green", OTHER: "yellow", NOTHING: "red"}[line["verdict"]]
            cells = [
                f"[{color}]{line['verdict']}[/{color}]",
                line["code"] or "",
                str(line["position"] or ""),
                " ".join(line["codes"]),
                str(len(line["alarms"]) or ""),
                str(line.get("lines", "")),
            ]
        table.add_row(line["name"], line["mode"], *cells)
    return table


def healthy_table(lines: Sequence[Line]) -> Table:
    """Healthy pipelines, a row for each mode."""
    table = Table("healthy pipeline", "mode", "steps", "advice", "alarms")
    for line in lines:
        cells = ["", "", "[red]failed[/red]" if "error" in line else "not run"]
        if "steps" in line:
            cells = [str(line["steps"]), str(line["advice"] or ""), str(len(line["alarms"]) or "")]
        table.add_row(line["name"], line["mode"], *cells)
    return table


def totals_table(lines: Sequence[Line]) -> Table:
    """Sums, a column for each population and mode; what none of them has is left out."""
    columns = totals(lines)
    table = Table("", *(f"{column.pop('population')}\n{column.pop('mode')}" for column in columns))
    for key in columns[0]:
        values = [column[key] for column in columns]
        if any(value is not None and value != 0 for value in values):
            table.add_row(key, *("" if value is None else str(value) for value in values))
    return table


def troubles(lines: Sequence[Line]) -> list[str]:
    """False alarms and failures, as sentences."""
    said = [f"{x['name']} ({x['mode']}) failed: {x['error']}" for x in lines if "error" in x]
    said += [
        f"{x['name']} ({x['mode']}) false alarm: {alarm}"
        for x in lines
        for alarm in x.get("alarms", ())
    ]
    return said


def show(lines: Sequence[Line]) -> None:
    """Print tables, then what was not run and what went wrong."""
    console = Console(width=None if sys.stdout.isatty() else 150)
    cases = [line for line in lines if line["population"] != HEALTHY]
    healthy = [line for line in lines if line["population"] == HEALTHY]
    if cases:
        console.print(case_table(cases))
    if healthy:
        console.print(healthy_table(healthy))
    if lines:
        console.print(totals_table(lines))
    for reason in sorted({line["skipped"] for line in lines if "skipped" in line}):
        console.print(f"not run: {reason}", markup=False, soft_wrap=True)
    for trouble in troubles(lines):
        console.print(trouble, markup=False, soft_wrap=True)


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
        prog="python -m benchmarks.field",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    both = [KNOWN, FRESH]
    parser.add_argument("--mode", type=words(MODES), default=list(MODES), help="which modes")
    parser.add_argument("--population", type=words(both), default=both, help="which reports")
    parser.add_argument("--case", type=words(()), help="only these cases")
    parser.add_argument(
        "--healthy",
        type=words(()),
        nargs="?",
        const=[],
        help="only healthy pipelines, all or those named",
    )
    parser.add_argument(
        "--references", type=int, default=1, metavar="N", help="runs that the mode twin learns from"
    )
    parser.add_argument("--jobs", type=int, default=1, help="trials at a time")
    parser.add_argument(
        "--view", choices=VIEWS, default=FULL, help="what is recorded for rules and probes"
    )
    parser.add_argument("--json", type=Path, help="write the result here, with every finding")
    parser.add_argument("--markdown", type=Path, help="write a table of facts and contrast here")
    kept = parser.add_mutually_exclusive_group()
    kept.add_argument("--keep", type=Path, help="keep recordings here, and use those found here")
    kept.add_argument("--recorded", type=Path, help="judge the recordings found here, record none")
    options = parser.parse_args(argv)
    if options.recorded and not {FACTS, CONTRAST}.issuperset(options.mode):
        parser.error("--recorded needs --mode facts, contrast, or both")
    return options


def trials(options: argparse.Namespace) -> list[Trial]:
    """Every line of the table, in its order.

    Raises:
        FieldCaseError: a case or pipeline that is named does not exist.
    """
    cases, pipelines = load_cases(options.population), healthy_pipelines()
    known = {case.name for case in cases} | {path.stem for path in pipelines}
    named = [*(options.case or []), *(options.healthy or [])]
    unknown = [name for name in named if name not in known]
    if unknown:
        raise FieldCaseError(f"there is no {', '.join(unknown)}")
    if options.case is not None or options.healthy is not None:
        cases = [case for case in cases if case.name in (options.case or [])]
    if options.healthy is None:
        pipelines = [] if options.case is not None else pipelines
    elif options.healthy:
        pipelines = [path for path in pipelines if path.stem in options.healthy]
    lines = [Trial(mode=mode, case=case) for case in cases for mode in options.mode]
    return lines + [Trial(mode=m, pipeline=path) for path in pipelines for m in options.mode]


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line asks for."""
    options = options_of(argv)
    try:
        todo = trials(options)
    except FieldCaseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(options.jobs) as pool:
        folder = options.recorded or options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        recordings = Recordings(folder, is_complete=options.recorded is not None)
        cards = Cards(recordings)
        how = How(view=options.view, references=options.references)
        with contextlib.nullcontext() if options.recorded else harness.warm_processes():
            lines = list(pool.map(lambda trial: outcome(trial, recordings, how, cards), todo))
    show(lines)
    harness.write_json(
        options.json,
        {
            "machine": harness.describe_machine(),
            "view": options.view,
            "references": options.references,
            "totals": totals(lines),
            "lines": lines,
        },
    )
    if options.markdown:
        cases = [one.case for one in todo if one.case is not None]
        table = markdown(dict.fromkeys(cases), lines)
        options.markdown.write_text(table, encoding="utf-8")
    return int(bool(troubles(lines)))
