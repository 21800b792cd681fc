"""Whether the shipped invariants and the rules hold over versions of torch and Python.

    python -m benchmarks.versions PYTHON [PYTHON ...] [--case A13,B42] [--all] [--clean gan,vae]
        [--jobs 2] [--keep FOLDER] [--json FILE]

Each PYTHON, an interpreter with traincheck installed, records the clean pipelines and some cases of
the benchmark of silent bugs. The running one checks what they recorded, by rules alone and by all
of configs/invariants alone. Exits with 1 when a promise is broken: an alarm on a healthy run, more
broken invariants than asked, a RULE case missed by the rules.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import traincheck
from benchmarks import harness
from benchmarks.lab import Report
from benchmarks.silent_bugs.bench import words
from benchmarks.silent_bugs.case import RULE, Case, CaseError, clean_pipelines, launcher_of
from benchmarks.silent_bugs.case import load_cases as all_cases
from benchmarks.silent_bugs.judging import Line, judge, judge_clean
from benchmarks.silent_bugs.recordings import Recordings
from traincheck.api import check
from traincheck.errors import TraincheckError
from traincheck.presets import preset_names, preset_path
from traincheck.report.json_report import report_json
from traincheck.schema.findings import Verdict

ASKED_PERCENT = 0.3  # violated of triggered on clean pipelines, at most: as of many inputs
RULES, PRESETS = "rules", "presets"
# The error that ends a program, of the rank that tells it.
_ERROR = re.compile(r"^(?:\[rank\d+\]: )?(\w*(?:Error|Exception): .+)$", re.MULTILINE)
_PROBE = (
    "import json, platform, torch, traincheck;"
    "print(json.dumps({'python': platform.python_version(), 'torch': torch.__version__,"
    " 'traincheck': traincheck.__version__}))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """An interpreter and what it said of itself."""

    executable: str
    python: str
    torch: str

    @property
    def name(self) -> str:
        """A folder for its recordings: two installations of the same versions share one."""
        return f"torch-{self.torch}-python-{self.python}"


def probed(executable: str) -> Installation:
    """Ask an interpreter for its versions.

    Raises:
        SystemExit: it does not run, or has another traincheck.
    """
    try:
        said = json.loads(harness.run([executable, "-c", _PROBE]).expect().stdout)
    except (OSError, harness.CommandFailedError) as error:
        raise SystemExit(f"{executable} needs torch and traincheck: {error}") from error
    if said.pop("traincheck") != traincheck.__version__:
        raise SystemExit(f"{executable} has another traincheck than {sys.executable}")
    return Installation(executable=executable, **said)


def representative(cases: Sequence[Case]) -> list[Case]:
    """The first case of each class, mark and launcher."""
    first: dict[tuple[str, str, str], Case] = {}
    for case in cases:
        first.setdefault((case.class_, case.mark, case.launcher), case)
    return list(first.values())


def reports(run: Path) -> dict[str, tuple[Report, int, int]]:
    """By rules alone and by presets alone: the report, how many checks spoke, how many broke."""
    found = {}
    for mode in (RULES, PRESETS):
        files = [] if mode == RULES else [preset_path(name) for name in preset_names()]
        report = check(run, files, rules=mode == RULES)
        broken = report.count(Verdict.VIOLATED)
        document: Report = json.loads(json.dumps(report_json(report)))
        found[mode] = (document, broken + report.count(Verdict.HELD), broken)
    return found


def judged_clean(script: Path, recordings: Recordings) -> Line:
    """A clean pipeline: what spoke, what broke, what was said."""
    run = recordings.run(script, launcher_of(script))
    found = reports(run)
    _, triggered, broken = found[PRESETS]
    alarms = {mode: judge_clean(report)["false_alarms"] for mode, (report, _, _) in found.items()}
    return {"triggered": triggered, "broken": broken, "alarms": alarms}


def judged_case(case: Case, recordings: Recordings) -> Line:
    """A case: which of both finds it, and what they say of its twin."""
    buggy = reports(recordings.run(case.buggy, case.launcher, aborts=case.aborts))
    twin = reports(recordings.run(case.healthy, case.launcher))
    lines = {mode: judge(case, buggy[mode][0], twin[mode][0]) for mode in (RULES, PRESETS)}
    return {
        "mark": case.mark,
        "found": {mode: line["found"] for mode, line in lines.items()},
        "alarms": {mode: line["false_alarms"] for mode, line in lines.items()},
    }


def outcome(name: str, judged: Callable[[], Line], plain: Callable[[], harness.Done]) -> Line:
    """The line of a program; what fails is said in it.

    plain: runs the program unrecorded, when something failed. If that fails too, it lacks what this
    installation does not have; else the fault is ours.
    """
    try:
        return {"program": name, **judged()}
    except (harness.CommandFailedError, subprocess.TimeoutExpired, TraincheckError) as error:
        said = str(error)
    try:
        done = plain()
    except subprocess.TimeoutExpired as error:
        return {"program": name, "error": f"{said}\nunrecorded: {error}"}
    if done.returncode == 0:
        return {"program": name, "error": said}
    told = _ERROR.search(done.stderr)
    return {"program": name, "lacks": told[1] if told else f"it ends with {done.returncode}"}


def judged(
    one: Installation, cases: Sequence[Case], pipelines: Sequence[Path], keep: Path, jobs: int
) -> dict[str, Any]:
    """Everything that an installation recorded, judged."""
    folder = keep / one.name
    folder.mkdir(parents=True, exist_ok=True)
    recordings = Recordings(folder, one.executable)

    def of_clean(script: Path) -> Line:
        return outcome(
            script.stem,
            lambda: judged_clean(script, recordings),
            lambda: recordings.plain(script, launcher_of(script)),
        )

    def of_case(case: Case) -> Line:
        return outcome(
            case.id,
            lambda: judged_case(case, recordings),
            lambda: recordings.plain(case.healthy, case.launcher),
        )

    with ThreadPoolExecutor(jobs) as pool:
        clean, bugs = pool.map(of_clean, pipelines), pool.map(of_case, cases)
        lines = {"clean": list(clean), "bugs": list(bugs)}
    return {"python": one.python, "torch": one.torch, **sums(**lines), **lines}


def sums(clean: Sequence[Line], bugs: Sequence[Line]) -> dict[str, Any]:
    """Figures of an installation."""
    ran = [line for line in clean if "triggered" in line]
    tried = [line for line in bugs if "found" in line]
    triggered = sum(line["triggered"] for line in ran)
    broken = sum(line["broken"] for line in ran)
    return {
        "pipelines": len(ran),
        "triggered": triggered,
        "broken": broken,
        "percent": round(100 * broken / max(1, triggered), 3),
        "alarms": sum(len(x) for line in [*ran, *tried] for x in line["alarms"].values()),
        "cases": len(tried),
        **{f"by {mode}": sum(line["found"][mode] for line in tried) for mode in (RULES, PRESETS)},
        "by either": sum(any(line["found"].values()) for line in tried),
        "lacking": sum("lacks" in line for line in [*clean, *bugs]),
        "failed": sum("error" in line for line in [*clean, *bugs]),
    }


COLUMNS = ("torch", "python", "pipelines", "triggered", "broken", "percent", "alarms")
COLUMNS += ("cases", "by rules", "by presets", "by either", "lacking", "failed")


def promises(found: Mapping[str, Any]) -> list[str]:
    """The promises that an installation breaks, as sentences."""
    said = []
    if found["percent"] > ASKED_PERCENT:
        said.append(f"{found['broken']} of {found['triggered']} invariants broken on clean runs")
    for line in [*found["clean"], *found["bugs"]]:
        if "error" in line:
            said.append(f"{line['program']}: {line['error']}")
        for alarms in line.get("alarms", {}).values():
            said += [f"{line['program']}: false alarm: {alarm}" for alarm in alarms]
        if line.get("mark") == RULE and not line["found"][RULES]:
            said.append(f"{line['program']}: missed by rules")
    return said


def show(results: Sequence[Mapping[str, Any]]) -> None:
    """Print the table, what is lacking, and what is broken."""
    print(harness.table(COLUMNS, ([found[name] for name in COLUMNS] for found in results)))
    for found in results:
        where = f"torch {found['torch']}, Python {found['python']}"
        for line in [*found["clean"], *found["bugs"]]:
            if "lacks" in line:
                print(f"{where}: not run: {line['program']}: {line['lacks']}")
        for promise in promises(found):
            print(f"{where}: broken: {promise}")


def chosen(names: Sequence[str] | None, of: Mapping[str, Any]) -> list[Any]:
    """The items with these names, or all.

    Raises:
        CaseError: there is no such program.
    """
    unknown = sorted(set(names or ()) - set(of))
    if unknown:
        raise CaseError(f"there is no {', '.join(unknown)}")
    return [value for name, value in of.items() if names is None or name in names]


def options_of(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.versions",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("python", nargs="+", help="interpreters with torch and traincheck")
    parser.add_argument("--case", type=words(()), help="only cases of these ids")
    parser.add_argument("--all", action="store_true", help="all cases, not one of each kind")
    parser.add_argument("--clean", type=words(()), help="only these clean pipelines")
    parser.add_argument("--jobs", type=int, default=2, help="programs at a time")
    parser.add_argument("--keep", type=Path, help="keep recordings here, and use those that are")
    parser.add_argument("--json", type=Path, help="write the result here")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; 1 when a promise is broken, 2 when it cannot be run."""
    options = options_of(argv)
    cases = all_cases() if options.all or options.case else representative(all_cases())
    try:
        cases = chosen(options.case, {case.id: case for case in cases})
        pipelines = chosen(options.clean, {path.stem: path for path in clean_pipelines()})
    except CaseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    installations = [probed(executable) for executable in options.python]
    with tempfile.TemporaryDirectory() as scratch:
        keep = options.keep or Path(scratch)
        results = [judged(one, cases, pipelines, keep, options.jobs) for one in installations]
    show(results)
    harness.write_json(
        options.json, {"machine": harness.describe_machine(), "installations": results}
    )
    return int(any(promises(found) for found in results))


if __name__ == "__main__":
    sys.exit(main())
