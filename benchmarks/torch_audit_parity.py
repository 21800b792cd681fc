"""Run torch-audit and traincheck over the same sabotaged and healthy programs, and compare.

    python -m benchmarks.torch_audit_parity --other PYTHON [--write] [--json FILE]
        [--only WORD] [--jobs N] [--keep FOLDER]

PYTHON is the interpreter of a virtual environment with torch 2.13.0 and torch-audit 0.3.0;
``--write`` puts the table into docs/torch-audit.md. Exits with 1 when we do not leave a healthy
program alone.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.torch_audit_cases.all_cases import CASES
from benchmarks.torch_audit_cases.case import HEALTHY, HOST, SABOTAGED, STOPS, Case
from benchmarks.torch_audit_checks import OLDER, RELEASE, THRESHOLDS
from traincheck.rules.options import options_of
from traincheck.rules.table import RULES

PAGE = harness.ROOT / "docs" / "torch-audit.md"
COMMAND = "python -m benchmarks.torch_audit_parity --other ../audit/bin/python --write"
GPU = "needs a GPU"
STOPPED = "stops by itself"
_PROGRAMS = "benchmarks.torch_audit_cases"
_ERROR = re.compile(r"(?!error:)[\w.]*(Error|Exception)\b")
_LOUD = frozenset({"error", "warning"})


def theirs(other: Path, cases: Sequence[Case]) -> dict[str, dict[str, Any]]:
    """The findings of torch-audit, all in one process of the other environment."""
    argv = [other, "-m", _PROGRAMS, "--audited", *(case.id for case in cases)]
    done = harness.run(argv, cwd=harness.ROOT).expect()
    found: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def ours(case: Case, folder: Path) -> dict[str, Any]:
    """The findings of the rules: record the program with their needs, check the recording."""
    out = folder / case.id
    program = [sys.executable, "-m", _PROGRAMS, case.id]
    done = harness.collect(program, out, rules=True)
    try:
        report = harness.check(out)
    except harness.CommandFailedError as error:  # a result, not the end of the table
        return {"findings": {}, "loud": [], "end": f"crash: {str(error).splitlines()[-1]}"}
    counts = Counter(finding["code"] for finding in report["findings"])
    loud = sorted({f["code"] for f in report["findings"] if f["severity"] in _LOUD})
    end = f"crash: {_last_error(done.stderr)}" if done.returncode else ""
    return {"findings": dict(counts), "loud": loud, "end": end}


def _sees_a_gpu(python: Path) -> bool:
    argv = [python, "-c", "import torch; print(torch.cuda.is_available())"]
    return harness.run(argv, cwd=harness.ROOT).expect().stdout.strip() == "True"


def _last_error(stderr: str) -> str:
    """The error that ended the program, from its output."""
    errors = [line for line in stderr.splitlines() if _ERROR.match(line)]
    return errors[-1] if errors else "no Python error"


def judge(case: Case, said: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """A verdict on what was said. names: what may speak of this case."""
    counts = said["findings"]
    named = [name for name in names if name in counts]
    others = sum(count for name, count in counts.items() if name not in named)
    if case.kind == HOST:
        verdict = said["end"].partition(":")[0] or "unharmed"
    elif said["end"] and case.kind != STOPS:
        verdict = "crash"
    elif case.kind == HEALTHY:
        loud = [name for name in said.get("loud", ()) if name not in named]
        named, others = [*named, *loud], others - sum(counts[name] for name in loud)
        verdict = "false alarm" if named else "quiet"
    elif case.kind == STOPS and not named:
        verdict = STOPPED if said["end"] else "missed"
    else:
        verdict = "found" if named else "missed"
    return {
        "verdict": verdict,
        "by": {name: counts[name] for name in named},
        "others": others,
        "end": said["end"],
    }


def compare(other: Path, cases: Sequence[Case], folder: Path, jobs: int) -> list[dict[str, Any]]:
    """Both tools over the cases; one line each."""
    has_gpu = all(_sees_a_gpu(python) for python in (Path(sys.executable), other))
    runnable = [case for case in cases if has_gpu or not case.needs_gpu]
    with ThreadPoolExecutor(jobs) as pool:
        mine = dict(zip([c.id for c in runnable], pool.map(lambda c: ours(c, folder), runnable)))
    their = theirs(other, runnable)
    lines = []
    for case in cases:
        line: dict[str, Any] = {
            "case": case.id,
            "kind": case.kind,
            "about": case.about,
            "checks": list(case.checks),
            "codes": list(case.codes),
            "style": case.style,
        }
        if case not in runnable:
            nothing = {"verdict": GPU, "by": {}, "others": 0, "end": ""}
            lines.append({**line, "theirs": nothing, "ours": nothing})
            continue
        lines.append(
            {
                **line,
                "theirs": judge(case, their[case.id], [c for c in case.checks if c in RELEASE]),
                "ours": judge(case, mine[case.id], case.codes),
            }
        )
    return lines


def cell(side: Mapping[str, Any]) -> str:
    """One side of a line in words."""
    by = ", ".join(f"{name}" + (f" x{n}" if n > 1 else "") for name, n in side["by"].items())
    more = f" (+{side['others']})" if side["others"] else ""
    return f"{side['verdict']}{' ' + by if by else ''}{more}"


def totals(lines: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """The numbers of sabotaged, healthy and host programs, and the share of each side."""
    rows = []
    for kind, good, label in (
        (SABOTAGED, "found", "sabotaged programs found"),
        (HEALTHY, "quiet", "healthy programs left alone"),
        (HOST, "unharmed", "programs that went on unharmed"),
    ):
        run = [line for line in lines if line["kind"] == kind and line["ours"]["verdict"] != GPU]
        rows.append((label, *(_share(run, side, good) for side in ("theirs", "ours"))))
    run = [line for line in lines if line["ours"]["verdict"] != GPU]
    counts = [
        str(sum(sum(line[side]["by"].values()) + line[side]["others"] for line in run))
        for side in ("theirs", "ours")
    ]
    return [*rows, ("findings in all", *counts)]


def _count(lines: Sequence[Mapping[str, Any]], verdict: str) -> int:
    return sum(line["ours"]["verdict"] == verdict for line in lines)


def _share(run: Sequence[Mapping[str, Any]], side: str, good: str) -> str:
    return f"{sum(line[side]['verdict'] == good for line in run)} of {len(run)}"


def page(lines: Sequence[Mapping[str, Any]]) -> str:
    """docs/torch-audit.md."""
    parts = [
        "# torch-audit and traincheck, side by side",
        _INTRODUCTION,
        "## Totals",
        _markdown(("", "torch-audit 0.3.0", "traincheck"), totals(lines)),
        f"{_count(lines, GPU)} more need a GPU and were not run, on either side: {_GPU_TESTS}",
        "## Checks",
        _CHECKS,
        _markdown(("check", "about", "our rules", "cases: theirs / ours"), check_rows(lines)),
        "## Thresholds",
        _THRESHOLDS,
        _markdown(("check", "about", "theirs", "ours", "where it differs"), threshold_rows()),
        "## Cases",
        _CASES,
        _markdown(
            ("case", "what it is", "kind", "torch-audit 0.3.0", "traincheck"),
            [
                (
                    f"`{line['case']}`",
                    line["about"],
                    line["kind"],
                    cell(line["theirs"]),
                    cell(line["ours"]),
                )
                for line in lines
            ],
        ),
        "## What ended programs",
        _markdown(
            ("case", "torch-audit 0.3.0", "traincheck"),
            [
                (f"`{line['case']}`", line["theirs"]["end"] or "-", line["ours"]["end"] or "-")
                for line in lines
                if line["theirs"]["end"] or line["ours"]["end"]
            ],
        ),
    ]
    return "\n\n".join(parts) + "\n"


def threshold_rows() -> list[tuple[str, ...]]:
    """A row a check that compares with a number: theirs, and our option with its default."""
    by_code = {rule.info.code: rule for rule in RULES}
    rows = []
    for check, told in THRESHOLDS.items():
        label = f"`{check}`" if check in RELEASE else f"older {check}"
        options = options_of(by_code[told.code])
        ours = f"`{told.option} = {options[told.option].default}`" if told.option else "-"
        about = {**RELEASE, **OLDER}[check]
        rows.append((label, about, told.published, f"{told.code} {ours}", told.why or "-"))
    return rows


def check_rows(lines: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """A row a check: its cases and both verdicts."""
    rows = []
    named = [*((f"`{i}`", i, about) for i, about in RELEASE.items())]
    named += [(f"older {i}", i, about) for i, about in OLDER.items()]
    for label, check, about in named:
        mine = [line for line in lines if check in line["checks"]]
        codes = sorted({code for line in mine for code in line["codes"] if line["kind"] != HEALTHY})
        cases = [
            f"{line['case']}: {line['theirs']['verdict']} / {line['ours']['verdict']}"
            if line["ours"]["verdict"] != GPU
            else f"{line['case']}: {GPU}"
            for line in mine
        ]
        rows.append((label, about, ", ".join(codes) or "-", "<br>".join(cases)))
    return rows


def _markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(
        "| " + " | ".join(text.replace("|", "\\|") for text in line) + " |" for line in lines
    )


_INTRODUCTION = f"""\
Generated by these commands; do not edit:

    python3 -m venv ../audit
    ../audit/bin/pip install torch==2.13.0 torch-audit==0.3.0
    {COMMAND}

Both tools run over the same small training programs, on a CPU, without configuration.

- torch-audit 0.3.0 runs in a separate virtual environment and audits every step, in the mode that
  its documentation calls the most accurate. A few cases are about the two other modes.
- traincheck runs as `traincheck collect --rules` and `traincheck check`.

A *sabotaged* program has a bug, a *healthy* one has none. In the third kind, *host*, the program
does something ordinary to its model, and must continue unharmed. *Stops* means that PyTorch itself
refuses the program. A verdict counts only the rules that the case is about. For traincheck, any
error or warning on a healthy program counts too. `(+3)` is the number of further findings."""
_GPU_TESTS = """\
no figure above counts
them. Their rules are tested with traces made by hand (`tests/rules/efficiency`). On a machine
with a GPU, the command above runs them as well."""
_CHECKS = """\
Ids are those of release 0.3.0. The README of its first version listed more checks. They have no ids
and are numbered here."""
_THRESHOLDS = """\
Published thresholds are the defaults of traincheck. `[rules.CODE]` of a configuration sets others
(see [Living with rules](living-with-rules.md)). Checks that are not listed have no threshold."""
_CASES = "`x10` is the number of findings of a rule: torch-audit repeats a finding at each step."


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--other", type=Path, required=True, help="interpreter with torch-audit")
    parser.add_argument("--write", action="store_true", help="write docs/torch-audit.md")
    parser.add_argument("--json", type=Path, help="write the result here")
    parser.add_argument("--only", default="", help="only cases whose name or check holds this")
    parser.add_argument("--jobs", type=int, default=2, help="recordings at a time")
    parser.add_argument("--keep", type=Path, help="keep traces in this folder")
    options = parser.parse_args(argv)
    cases = [c for c in CASES.values() if options.only in f"{c.id} {' '.join(c.checks)}"]
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        lines = compare(options.other, cases, folder, options.jobs)
    rows = [
        [line["case"], line["kind"], cell(line["theirs"]), cell(line["ours"])] for line in lines
    ]
    print(harness.table(["case", "kind", "torch-audit", "traincheck"], rows))
    print("\n" + harness.table(["", "torch-audit", "traincheck"], totals(lines)))
    harness.write_json(options.json, {"machine": harness.describe_machine(), "cases": lines})
    if options.write:
        PAGE.write_text(page(lines), encoding="utf-8")
    return int(any(line["ours"]["verdict"] == "false alarm" for line in lines))


if __name__ == "__main__":
    sys.exit(main())
