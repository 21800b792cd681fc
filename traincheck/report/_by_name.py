"""The line of a call that the trace tells no line of, found by its name in the program's source.

Only where the name is called on one line of the script that was run, and nowhere else in it.
"""

from __future__ import annotations

from traincheck.check.suppression.source_calls import lines_calling
from traincheck.report._places import Place, code_at, code_of, from_here, place_of, unchanged
from traincheck.schema.findings import Finding, Report


def located(finding: Finding, report: Report) -> tuple[Place | None, str]:
    """The line to look at, as the trace tells it, else by its name; and the code there.

    Never raises: a finding is reported also where its line cannot be found.
    """
    try:
        return _located(finding, report)
    except Exception:
        return None, ""


def _located(finding: Finding, report: Report) -> tuple[Place | None, str]:
    place = place_of(finding, report)
    if place is not None:
        return place, code_of(finding, report)
    place = place_by_name(finding, report)
    return place, code_at(report.program, place.line, report) if place else ""


def place_by_name(finding: Finding, report: Report) -> Place | None:
    """The only line that calls what a finding is about; None when there is none, or several."""
    if not finding.subject.api or not report.program:
        return None
    lines = lines_calling(finding.subject.api, unchanged(report.program, report))
    if len(lines) != 1:
        return None
    return Place(path=from_here(report.program, report.root), line=lines.pop())
