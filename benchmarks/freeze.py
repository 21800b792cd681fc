"""Freeze: the texts about a fixed set of runs, as a proof that a change of code changes none.

    python -m benchmarks.freeze record RUNS [--jobs 2]
    python -m benchmarks.freeze write RUNS OUT [--jobs 2]
    python -m benchmarks.freeze count OUT
    python -m benchmarks.freeze compare BEFORE AFTER

``record`` runs the cases of the benchmarks, their twins and the healthy programs, once each.
``write`` reads these runs and the broken run of each rule. It writes for each run the findings, the
learned invariants and the data of its page, and for each case what its twin tells of it and the
difference of both. ``count`` adds the instructions of a step (benchmarks/instructions.py).
``compare`` shows the first lines that differ, and counts that rose by more than half a percent; its
exit status is 1 if any do.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from functools import partial
from itertools import islice
from pathlib import Path

from benchmarks.field.case import healthy_pipelines
from benchmarks.field.case import load_cases as field_cases
from benchmarks.instructions import count
from benchmarks.lab import FULL
from benchmarks.silent_bugs.case import TWO_RANKS, clean_pipelines
from benchmarks.silent_bugs.case import load_cases as silent_cases
from benchmarks.silent_bugs.recordings import Recordings
from tests.checking import report_of
from tests.rules.broken import BROKEN
from traincheck.api import check, make_engine
from traincheck.diff.library import diff
from traincheck.infer.engine import InferResult, Run, infer
from traincheck.page.build import page_of_run
from traincheck.report.json_report import report_json
from traincheck.schema.invariant_file import invariant_json, write_invariants
from traincheck.store.reader import TraceReader

_SHOWN, _WIDTH = 12, 200  # of what differs in a file
_COUNTS, _RISE = "instructions.json", 0.005
_DATA = re.compile(r'<script type="application/json"[^>]*>(.*?)</script>', re.S)
Program = tuple[str, Path, str, bool]


def programs() -> Iterator[Program]:
    """Name, script, launcher, and whether it may end with an error; twins follow their cases."""
    for case in silent_cases():
        yield f"silent-{case.folder.name}-buggy", case.buggy, case.launcher, case.aborts
        yield f"silent-{case.folder.name}-clean", case.healthy, case.launcher, False
    for field in field_cases():
        yield f"field-{field.name}-buggy", field.buggy, field.launcher, False
        yield f"field-{field.name}-clean", field.clean, field.launcher, False
    for script in (*clean_pipelines(), *healthy_pipelines()):
        launcher = "torchrun" if script.stem.startswith(TWO_RANKS) else "python"
        yield f"healthy-{script.stem}", script, launcher, False


def record(runs: Path, program: Program) -> Path:
    """The recorded run of a program; made if it is missing."""
    _, script, launcher, aborts = program
    more = ["--probe"] if launcher == "python" else []
    return Recordings(runs).run(script, launcher, view=FULL, more=more, aborts=aborts)


def write(name: str, run: Path, twin: Path | None, out: Path) -> None:
    """Write the results of a run. twin: of the same program without the fault."""
    _put(out / f"{name}.findings.json", report_json(check(run)))
    learned = _learned(run).invariants
    _put(out / f"{name}.invariants.json", [invariant_json(one) for one in learned])
    page, _ = page_of_run(make_engine([]), TraceReader(run, may_be_empty=True))
    _put(out / f"{name}.page.json", [json.loads(found) for found in _DATA.findall(page)])
    if twin is None:
        return
    with tempfile.TemporaryDirectory() as scratch:
        reference = Path(scratch) / "invariant.json"
        found = _learned(twin)
        write_invariants(reference, found.invariants, {}, found.runs)
        _put(out / f"{name}.learned.json", report_json(check(run, [reference], rules=False)))
    _put(out / f"{name}.diff.json", diff(twin, run).to_dict())


def _learned(run: Path) -> InferResult:
    return infer([Run(name=run.name, source=TraceReader(run, may_be_empty=True))])


def write_broken(code: str, out: Path) -> None:
    """Write the findings of all rules in the broken run of one."""
    _put(out / f"rule-{code}.findings.json", report_json(report_of(BROKEN[code])))


def compare(before: Path, after: Path) -> int:
    """Print the first lines that differ; returns the number of files."""
    names = sorted({path.name for folder in (before, after) for path in folder.iterdir()})
    differ = _compare_counts(before / _COUNTS, after / _COUNTS)
    for name in names:
        if name == _COUNTS:
            continue
        one, other = (
            [] if not p.exists() else p.read_text().split("\n")
            for p in (before / name, after / name)
        )
        if one != other:
            differ += 1
            found = difflib.unified_diff(one, other, name, "", n=0, lineterm="")
            print(*(line[:_WIDTH] for line in islice(found, _SHOWN)), sep="\n")
    print(f"{differ} of {len(names)} files differ")
    return differ


def _compare_counts(before: Path, after: Path) -> int:
    """Print instructions of a step that rose; returns whether any did."""
    one, other = (
        json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        for path in (before, after)
    )
    rose = {name: other[name] / one[name] - 1 for name in one.keys() & other.keys()}
    for name, share in sorted(rose.items()):
        print(f"{name}: {one[name]:,.0f} -> {other[name]:,.0f} instructions ({share:+.2%})")
    return int(any(share > _RISE for share in rose.values()))


def _put(path: Path, value: object) -> None:
    text = json.dumps(value, indent=1, sort_keys=True, default=str)
    path.write_text(f"{text}\n", encoding="utf-8")


def _record_all(options: argparse.Namespace) -> int:
    options.runs.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(options.jobs) as pool:
        for number, _ in enumerate(pool.map(partial(record, options.runs), programs()), 1):
            print(f"\r{number} programs recorded", end="", file=sys.stderr)
    return 0


def _write_all(options: argparse.Namespace) -> int:
    options.out.mkdir(parents=True, exist_ok=True)
    made = {one[0]: record(options.runs, one) for one in programs()}
    with ProcessPoolExecutor(options.jobs) as pool:
        todo = [pool.submit(write_broken, code, options.out) for code in BROKEN]
        todo += [
            pool.submit(write, name, run, _twin(name, made), options.out)
            for name, run in made.items()
        ]
        for number, one in enumerate(as_completed(todo), 1):
            one.result()
            print(f"\r{number} of {len(todo)}", end="", file=sys.stderr)
    return 0


def _count_all(options: argparse.Namespace) -> int:
    options.out.mkdir(parents=True, exist_ok=True)
    found = {}
    for name, number in count():
        found[name] = number
        print(f"{name}: {number:,.0f}", file=sys.stderr)
    _put(options.out / _COUNTS, found)
    return 0


def _twin(name: str, runs: Mapping[str, Path]) -> Path | None:
    stem, _, end = name.rpartition("-")
    return runs.get(f"{stem}-clean") if end == "buggy" else None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.freeze",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True)
    for name, run, folders in (
        ("record", _record_all, ["runs"]),
        ("write", _write_all, ["runs", "out"]),
        ("count", _count_all, ["out"]),
        ("compare", lambda found: int(compare(found.before, found.after) > 0), ["before", "after"]),
    ):
        command = commands.add_parser(name)
        command.set_defaults(call=run)
        command.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
        for folder in folders:
            command.add_argument(folder, type=Path)
    options = parser.parse_args(argv)
    return int(options.call(options))


if __name__ == "__main__":
    sys.exit(main())
