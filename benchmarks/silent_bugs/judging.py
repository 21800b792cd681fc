"""Compare reports with what cases promise. Runs nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.lab import Report, alarms
from benchmarks.silent_bugs.case import MARKS, RULE, RULE_MAYBE, Case

Line = dict[str, Any]

RULES, TWIN, TRANSFER = "rules", "twin", "transfer"
MODES = (RULES, TWIN, TRANSFER)

FIRST_SHARE = 0.9  # of the RULE cases, the true cause must come first
AMONG_FIRST = 3  # and in all of them among so many
MAYBE_SHARE = 0.6  # of the RULE~ cases must be found


def is_true_cause(case: Case, finding: dict[str, Any]) -> bool:
    """Whether a finding is about the fault of a case: by its rule, its words and its step."""
    step = finding["first_step"] or 0  # none at all: before the first step
    if not case.first_step <= step <= case.last_step:
        return False
    if finding["kind"] == "rule" and finding["code"] not in case.codes:
        return False
    said = spoken(finding)
    return any(name.lower() in said for name in case.names)


def spoken(finding: dict[str, Any]) -> str:
    """Every word of a finding in lower case, with the names of variables in its evidence."""
    keys = ("title", "message", "expected", "observed", "likely_cause", "fix")
    parts = [finding.get(key) for key in keys] + list(finding["subject"].values())
    for event in finding.get("evidence", ()):
        parts += [event.get(key) for key in ("name", "api", "module")]
    return " | ".join(str(part) for part in parts if part).lower()


def judge(case: Case, buggy: Report, twin: Report) -> Line:
    """The result of a case in one mode.

    position: of the true cause among the findings, from 1; none when it was not found.
    """
    position = next((i for i, f in enumerate(buggy["findings"], 1) if is_true_cause(case, f)), None)
    cause = buggy["findings"][position - 1] if position else None
    return {
        "found": position is not None,
        "step": cause["first_step"] if cause else None,
        "position": position,
        "code": cause["code"] if cause else None,
        "said": [_line_of(finding) for finding in buggy["findings"]],
        "false_alarms": [_line_of(finding) for finding in alarms(twin)],
    }


def _line_of(finding: dict[str, Any]) -> str:
    step = finding["first_step"]
    return f"{finding['code']} ({finding['severity']}, step {step}): {finding['message']}"


def judge_clean(report: Report) -> Line:
    """The result of a clean pipeline in one mode; advice is counted, never an alarm."""
    return {
        "advice": len(report["findings"]) - len(alarms(report)),
        "steps": report["summary"]["steps"],
        "false_alarms": [_line_of(finding) for finding in alarms(report)],
    }


def totals(lines: Sequence[Line]) -> list[Line]:
    """Sums for each mode and mark, then of the clean pipelines in each mode."""
    rows = []
    for mode in MODES:
        for mark in MARKS:
            mine = [x for x in lines if (x["mode"], x.get("mark")) == (mode, mark)]
            if mine:
                rows.append(_sum(mine, mode=mode, mark=mark))
        clean = [x for x in lines if x["mode"] == mode and x["group"] == "clean"]
        if clean:
            rows.append(_sum(clean, mode=mode, mark="clean"))
    return rows


def _sum(lines: Sequence[Line], *, mode: str, mark: str) -> Line:
    found = [line for line in lines if line.get("found")]
    return {
        "mode": mode,
        "mark": mark,
        "cases": len(lines),
        "found": len(found),
        "first": sum(1 for line in found if line["position"] == 1),
        "among_first": sum(1 for line in found if line["position"] <= AMONG_FIRST),
        "with_false_alarms": sum(1 for line in lines if line.get("false_alarms")),
        "failed": sum(1 for line in lines if "error" in line),
    }


def broken_promises(lines: Iterable[Line]) -> list[str]:
    """Every promise that these outcomes break, as sentences."""
    lines = list(lines)
    said = [
        f"{line['case']} ({line['mode']}): {line['error']}" for line in lines if "error" in line
    ]
    done = [line for line in lines if "error" not in line]
    said += [
        f"{line['case']} ({line['mode']}): false alarm: {alarm}"
        for line in done
        for alarm in line["false_alarms"]
    ]
    by_rules = [line for line in done if line["mode"] == RULES and line["group"] == "bug"]
    sure = [line for line in by_rules if line["mark"] == RULE]
    said += [f"{line['case']} (rules): missed" for line in sure if not line["found"]]
    said += [
        f"{line['case']} (rules): true cause only at place {line['position']}"
        for line in sure
        if line["found"] and line["position"] > AMONG_FIRST
    ]
    first = sum(1 for line in sure if line["position"] == 1)
    if sure and first < FIRST_SHARE * len(sure):
        said.append(f"true cause first in {first} of {len(sure)} RULE cases only")
    maybe = [line for line in by_rules if line["mark"] == RULE_MAYBE]
    found = sum(1 for line in maybe if line["found"])
    if maybe and found < MAYBE_SHARE * len(maybe):
        said.append(f"only {found} of {len(maybe)} RULE~ cases found")
    return said
