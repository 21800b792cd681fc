"""Short sentences that several forms of a report share."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from traincheck.check.run_overview import suspect_note
from traincheck.schema.findings import Finding, Report, Verdict
from traincheck.schema.shown import tally_text
from traincheck.schema.words import counted


def conclusion(report: Report) -> str:
    """The result in one line that says who says so."""
    return f"traincheck: {result(report)}"


def result(report: Report) -> str:
    """The result in one line."""
    found = tally_text(report.tally)
    suppressed = f", {suppressions(report)}" if report.suppressed else ""
    but = "" if report.tally["finding"] else doubt(report)
    return f"{found}{suppressed}{f', but {but}' if but else f'; {checked(report)}'}"


def doubt(report: Report) -> str:
    """Why "no findings" is not a good result; empty if it is."""
    lacking = lack(report)
    if lacking is not None:
        return lacking.reason
    return f"only part of the run was checked: {checked(report)}" if report.is_partial else ""


@dataclass(frozen=True, slots=True)
class Lack:
    """Why nothing or too little was checked, and what to do."""

    reason: str
    fix: str


def lack(report: Report) -> Lack | None:
    """Why nothing or too little of this run was checked; None if enough was."""
    if report.is_empty:
        reason, fix = _emptiness(report)
        return Lack(f"nothing was checked: {reason}", fix)
    if report.is_short:
        required = counted(report.presentation.require_steps, "required step")
        were = "was" if report.checked_steps == 1 else "were"
        return Lack(
            f"{report.checked_steps:,} of the {required} {were} recorded",
            "train for more steps, record more of them (--every), or lower --require-steps",
        )
    return None


def _emptiness(report: Report) -> tuple[str, str]:
    if report.ended and not report.steps:
        return (
            f"the program {report.ended.whole} before a training step was recorded",
            report.ended.fix,
        )
    if not report.events:
        return "nothing was recorded", "read the notes, and check that the program imports torch"
    if not report.steps:
        return (
            "no training step was recorded",
            "check that the program reaches optimizer.step(); if the program does not train, "
            "use --allow-empty",
        )
    if not report.checked_steps:
        taken = counted(report.steps, "step")
        return (
            f"none of the {taken} was recorded",
            "record more steps: --every 1, or --warmup 20",
        )
    lacking = report.count(Verdict.NOT_OBSERVABLE)
    if lacking == len(report.verdicts):
        return (
            f"the trace lacks the events for {counted(lacking, 'check')}",
            "record with the same -i, --select and --rules as in this check, or without them",
        )
    return (
        "no check was triggered by this run",
        "check with invariants of this program, or widen --select",
    )


def checked(report: Report) -> str:
    """``36 checks held over 152 steps``."""
    held = counted(report.count(Verdict.HELD), "check")
    return f"{held} held over {counted(report.steps, 'step')}"


def suppressions(report: Report) -> str:
    """``3 suppressed (2 by baseline, 1 by comment)``."""
    by = Counter(f.suppressed.by for f in report.suppressed if f.suppressed)
    parts = ", ".join(f"{number} by {name}" for name, number in sorted(by.items()))
    return f"{len(report.suppressed)} suppressed ({parts})"


def notes_of(report: Report) -> list[str]:
    """Notes on the run: how it ended, and what could not be decided."""
    suspect = suspect_note(report)
    notes = [*([suspect] if suspect else []), *report.notes]
    if not report.skipped_lines:
        return notes
    return [
        *notes,
        f"{counted(report.skipped_lines, 'line')} of the trace could not be read",
    ]


def why_accepted(finding: Finding) -> str:
    """The reason and place of a suppression."""
    accepted = finding.suppressed
    if accepted is None:
        return ""
    where = f" {accepted.where}" if accepted.where else ""
    reason = f": {accepted.reason}" if accepted.reason and accepted.by != "baseline" else ""
    return f"by {accepted.by}{where}{reason}"
