"""Decide whether a finding names the cause of a case. Runs nothing."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.field.case import FieldCase, Groups
from benchmarks.lab import Report, alarms

Line = dict[str, Any]

RULES, PROBE, TWIN, FACTS, CONTRAST = "rules", "probe", "twin", "facts", "contrast"
MODES = (RULES, PROBE, TWIN, FACTS, CONTRAST)
AMONG_FIRST = (5, 8)  # lines of a card that a person surely reads
RIGHT, OTHER, NOTHING = "right cause", "other cause", "nothing"


def text_of(finding: dict[str, Any]) -> str:
    """The words of a finding that a person reads, in lower case.

    The cause and the fix of a rule count. Those of an invariant are lists of what is possible, so
    only what it claims and what was seen counts.
    """
    keys = ["title", "message", "expected", "observed"]
    if finding["kind"] == "rule":
        keys += ["likely_cause", "fix"]
    parts = [finding.get(key) for key in keys] + list(finding["subject"].values())
    return " | ".join(str(part) for part in parts if part).lower()


def contains(text: str, groups: Groups) -> bool:
    """Whether a text has one word of every group."""
    return all(any(word in text for word in group) for group in groups)


def names_cause(case: FieldCase, finding: dict[str, Any]) -> bool:
    """Whether a finding names the cause of a case.

    An invariant shows an effect, so it cannot be broken before the first step that is affected.
    """
    if finding["kind"] == "rule":
        return contains(text_of(finding), case.says)
    step = finding["first_step"]
    if step is not None and step < case.first_step:
        return False
    return contains(text_of(finding), case.twin)


def brief(finding: dict[str, Any]) -> str:
    """A finding in one line."""
    step = finding["first_step"]
    return f"{finding['code']} ({finding['severity']}, step {step}): {finding['message']}"


def judge(case: FieldCase, buggy: Report, clean: Report) -> Line:
    """The result of a case in one mode. position: of the first finding with the right cause."""
    findings = buggy["findings"]
    position = next((i for i, f in enumerate(findings, 1) if names_cause(case, f)), None)
    cause = findings[position - 1] if position else None
    verdict = RIGHT if cause else OTHER if alarms(buggy) else NOTHING
    return {
        "verdict": verdict,
        "position": position,
        "code": cause["code"] if cause else None,
        "severity": cause["severity"] if cause else None,
        "codes": codes_of(findings),
        "said": [brief(finding) for finding in findings],
        "alarms": [brief(finding) for finding in alarms(clean)],
    }


def codes_of(findings: Iterable[dict[str, Any]]) -> list[str]:
    """The codes of findings, each once, in their order."""
    return list(dict.fromkeys(finding["code"] for finding in findings))


def judge_healthy(report: Report) -> Line:
    """The result of a healthy pipeline in one mode."""
    return {
        "steps": report["summary"]["steps"],
        "advice": len(report["findings"]) - len(alarms(report)),
        "alarms": [brief(finding) for finding in alarms(report)],
    }


def totals(lines: Sequence[Line]) -> list[Line]:
    """Sums for each population and mode."""
    keys = dict.fromkeys((line["population"], line["mode"]) for line in lines)
    return [
        _sum([line for line in lines if (line["population"], line["mode"]) == key], *key)
        for key in keys
    ]


def _sum(lines: Sequence[Line], population: str, mode: str) -> Line:
    verdicts = [line.get("verdict") for line in lines]
    places = [line["position"] for line in lines if line.get("position")]
    by = [line.get("by") for line in lines]
    return {
        "population": population,
        "mode": mode,
        "programs": len(lines),
        **{verdict: verdicts.count(verdict) for verdict in (RIGHT, OTHER, NOTHING)},
        "first": places.count(1),
        **{f"in {most}": sum(1 for place in places if place <= most) for most in AMONG_FIRST},
        **{f"by {what}": by.count(what) for what in ("finding", "advice", "fact")},
        "unusual": sum(1 for line in lines if line.get("is_unusual")),
        **{key: _median(lines, key) for key in ("lines", "lines without a bug")},
        "as advice": sum(1 for line in lines if line.get("severity") == "info"),
        "with alarms": sum(1 for line in lines if line.get("alarms")),
        "failed": sum(1 for line in lines if "error" in line),
        "not run": sum(1 for line in lines if "skipped" in line),
    }


def _median(lines: Sequence[Line], key: str) -> float | None:
    values = [line[key] for line in lines if key in line]
    return statistics.median(values) if values else None
