"""Short sentences that several forms of a report share."""

from __future__ import annotations

from collections import Counter

from traincheck.schema.findings import Finding, Report, Verdict
from traincheck.schema.words import counted


def conclusion(report: Report) -> str:
    """How the report ends, in one line."""
    found = counted(len(report.findings), "finding") if report.findings else "no findings"
    suppressed = f", {suppressions(report)}" if report.suppressed else ""
    but = "" if report.findings else doubt(report)
    return f"traincheck: {found}{suppressed}{f', but {but}' if but else f'; {checked(report)}'}"


def doubt(report: Report) -> str:
    """Why it is no good news that nothing was found; empty where it is."""
    if not report.steps:
        return "nothing could be checked: no training step was seen"
    if not report.count(Verdict.HELD):
        return "nothing could be checked: no check was triggered by this run"
    return f"only part of the run was checked: {checked(report)}" if report.is_partial else ""


def checked(report: Report) -> str:
    """``36 checks held over 152 steps``."""
    held = counted(report.count(Verdict.HELD), "check")
    return f"{held} held over {counted(report.steps, 'step')}"


def suppressions(report: Report) -> str:
    """``3 suppressed (2 by baseline, 1 by comment)``."""
    by = Counter(f.accepted.by for f in report.suppressed if f.accepted)
    parts = ", ".join(f"{number} by {name}" for name, number in sorted(by.items()))
    return f"{len(report.suppressed)} suppressed ({parts})"


def notes_of(report: Report) -> list[str]:
    """What is to be known beside the findings: how the run ended, what could not be decided."""
    if not report.skipped_lines:
        return list(report.notes)
    return [
        *report.notes,
        f"{counted(report.skipped_lines, 'line')} of the trace could not be read",
    ]


def why_accepted(finding: Finding) -> str:
    """Who accepted a finding, where and why."""
    accepted = finding.accepted
    if accepted is None:
        return ""
    where = f" {accepted.where}" if accepted.where else ""
    reason = f": {accepted.reason}" if accepted.reason and accepted.by != "baseline" else ""
    return f"by {accepted.by}{where}{reason}"
