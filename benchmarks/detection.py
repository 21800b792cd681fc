"""The detection table: planted bugs, healthy runs, invariants carried to other programs.

    python -m benchmarks.detection [--json FILE] [--only WORD] [--jobs N] [--keep FOLDER]

Exits with 1 when a bug is missed or misnamed, or a healthy run is not left alone.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.cases import (
    BUGS,
    HEALTHY,
    PROGRAMS_APART,
    TARGET_STEPS,
    TRANSFERS,
    Bug,
    Healthy,
    Transfer,
)
from benchmarks.lab import (
    FULL,
    SELECTIVE,
    VIEWS,
    Lab,
    Report,
    alarms,
    brief,
    faults,
    faults_anywhere,
    first_finding,
    named_variables,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One line of the table. by: what judged. must: whether failing it fails the whole."""

    group: str
    case: str
    view: str
    by: str
    run: Callable[[Lab], tuple[Report, list[str]]]
    must: bool = True


def bug_trials(bug: Bug) -> Iterable[Trial]:
    """A bug in both views: by invariants and rules, by invariants alone, by rules alone."""

    def with_invariants(lab: Lab, view: str, rules: bool) -> tuple[Report, list[str]]:
        learned = lab.invariants(bug.script)
        report = lab.check(bug.script, bug.env, view=view, invariants=learned, rules=rules)
        return report, faults(bug, report)

    def with_rules(lab: Lab, view: str) -> tuple[Report, list[str]]:
        report = lab.check(bug.script, bug.env, view=view)
        return report, faults(bug, report) if bug.by_rules else []

    for view in VIEWS:
        for by, rules in (("invariants+rules", True), ("invariants", False)):
            # The selective run for both is one more recording of the same; once is enough.
            if not rules and view == SELECTIVE:
                continue

            def run(lab: Lab, view: str = view, rules: bool = rules) -> tuple[Report, list[str]]:
                return with_invariants(lab, view, rules)

            yield Trial(group="bug", case=bug.id, view=view, by=by, run=run)

        def run_rules(lab: Lab, view: str = view) -> tuple[Report, list[str]]:
            return with_rules(lab, view)

        yield Trial(
            group="bug", case=bug.id, view=view, by="rules", run=run_rules, must=bug.by_rules
        )


def healthy_trials(case: Healthy) -> Iterable[Trial]:
    """A healthy variant in both views, by invariants of the reference and rules."""
    for view in VIEWS:

        def run(lab: Lab, view: str = view) -> tuple[Report, list[str]]:
            learned = lab.invariants(case.script)
            report = lab.check(case.script, case.env, view=view, invariants=learned)
            return report, ["false alarm"] if alarms(report) else []

        yield Trial(group="healthy", case=case.id, view=view, by="invariants+rules", run=run)


def transfer_trial(case: Transfer) -> Trial:
    """A bug in one program, by invariants of another."""

    def run(lab: Lab) -> tuple[Report, list[str]]:
        learned = lab.invariants(case.reference)
        report = lab.check(
            case.bug.script, case.bug.env, view=FULL, invariants=learned, rules=False
        )
        return report, faults_anywhere(case.bug, report)

    return Trial(group="transfer", case=case.id, view=FULL, by="invariants", run=run)


def apart_trial(reference: Path, target: Path) -> Trial:
    """A healthy program, by invariants of an unlike one and rules."""

    def run(lab: Lab) -> tuple[Report, list[str]]:
        learned = lab.invariants(reference)
        report = lab.check(target, {"UP_STEPS": TARGET_STEPS}, view=FULL, invariants=learned)
        return report, ["false alarm"] if alarms(report) else []

    case = f"{reference.stem}-on-{target.stem}"
    return Trial(group="apart", case=case, view=FULL, by="invariants+rules", run=run, must=False)


def all_trials() -> list[Trial]:
    """Every line of the table, in its order."""
    trials = [trial for bug in BUGS for trial in bug_trials(bug)]
    trials += [trial for case in HEALTHY for trial in healthy_trials(case)]
    trials += [transfer_trial(case) for case in TRANSFERS]
    pairs = [(a, b) for a in PROGRAMS_APART for b in PROGRAMS_APART if a is not b]
    trials += [apart_trial(reference, target) for reference, target in pairs]
    return trials


def outcome(trial: Trial, lab: Lab) -> dict[str, Any]:
    """Run one trial; a command that fails is a result, not the end of the table."""
    line: dict[str, Any] = {
        "group": trial.group,
        "case": trial.case,
        "view": trial.view,
        "by": trial.by,
        "must": trial.must,
    }
    try:
        report, wrong = trial.run(lab)
    except harness.CommandFailedError as error:
        return {**line, "wrong": ["a command failed"], "error": str(error), "findings": []}
    summary = report["summary"]
    return {**line, "wrong": wrong, "findings": brief(report["findings"]), "summary": summary}


def cells(line: dict[str, Any]) -> list[str]:
    """One outcome as a row."""
    finding = first_finding(line)
    said = [str(finding["first_step"]), finding["title"][:70]] if finding else ["-", "-"]
    names = sorted(named_variables(finding)) if finding else []
    named = ", ".join(names[:2]) + (f" +{len(names) - 2}" if len(names) > 2 else "")
    expected = "; ".join(line["wrong"]) or "as it should be"
    verdict = expected if line["must"] or not line["wrong"] else f"({expected})"
    count = str(len(line["findings"]))
    return [line["case"], line["view"], line["by"], count, *said, named, verdict]


def totals(lines: Sequence[dict[str, Any]]) -> list[str]:
    """Right outcomes of all, for each group and way of judging."""
    kinds = sorted({(line["group"], line["view"], line["by"]) for line in lines})
    said = []
    for kind in kinds:
        mine = [line for line in lines if (line["group"], line["view"], line["by"]) == kind]
        judged = [line for line in mine if line["must"]] or mine
        right = sum(1 for line in judged if not line["wrong"])
        said.append(f"{' / '.join(kind)}: {right} of {len(judged)} as they should be")
    return said


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the result here")
    parser.add_argument(
        "--only", default="", help="only cases whose name, group or view holds this"
    )
    parser.add_argument("--jobs", type=int, default=2, help="recordings at a time")
    parser.add_argument("--keep", type=Path, help="keep traces and invariants in this folder")
    options = parser.parse_args(argv)
    trials = [t for t in all_trials() if options.only in f"{t.group} {t.case} {t.view} {t.by}"]
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(options.jobs) as pool:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        lab = Lab(folder)
        lines = list(pool.map(lambda trial: outcome(trial, lab), trials))
    header = ["case", "view", "by", "findings", "step", "first finding", "names", "verdict"]
    print(harness.table(header, (cells(line) for line in lines)))
    print("\n" + "\n".join(totals(lines)))
    harness.write_json(options.json, {"machine": harness.describe_machine(), "trials": lines})
    return int(any(line["wrong"] and line["must"] for line in lines))


if __name__ == "__main__":
    sys.exit(main())
