"""The line of a call that the trace tells no line of, found by its name in the program's source.

Only where the name is called on one line of the script that was run, and nowhere else in it.
"""

from __future__ import annotations

from traincheck.check.source_calls import lines_calling
from traincheck.report._places import Place, code_at, code_of, from_here, place_of, unchanged
from traincheck.schema.findings import Finding, Report


def located(finding: Finding, report: Report) -> tuple[Place | None, str]:
    """The line to look at, as the trace tells it, else by its name; and the code there."""
    place = place_of(finding, report)
    if place is not None:
        return place, code_of(finding, report)
    place = place_by_name(finding, report)
    return place, code_at(report.program, place.line, report) if place else ""


def place_by_name(finding: Finding, report: Report) -> Place | None:
    """The only line that calls what a finding is about; None when there is none, or several."""
    if not finding.subject.api or not report.program:
        return None
    found = unchanged(report.program, report)
    lines = lines_calling(finding.subject.api, found) if found else set()
    if len(lines) != 1:
        return None
    return Place(path=from_here(report.program, report.root), line=lines.pop())
