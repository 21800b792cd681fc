"""Where in the source a finding points: as the trace tells it, or found by name in the source."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

from traincheck.check.suppression.source_files import SourceFiles, lines_calling, split_place
from traincheck.schema.findings import Finding, Report
from traincheck.schema.places import where

_LONGEST = 160  # characters of a line of code


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A line of a file.

    path: from the root of the checkout that GitHub names, else from the working directory, where
    the file is below it; else in full.
    """

    path: str
    line: int


def place_of(finding: Finding, report: Report) -> Place | None:
    """The line to look at; None when the evidence knows of none."""
    place = split_place(where(finding.evidence) or "")
    if place is None:
        return None
    path, line = place
    return Place(path=from_here(path, report.root), line=line)


def code_of(finding: Finding, report: Report) -> str:
    """The line itself; empty when its file is not here, or may have changed since the run."""
    place = split_place(where(finding.evidence) or "")
    return code_at(*place, report) if place is not None else ""


def code_at(path: str, line: int, report: Report) -> str:
    """A line of a file; empty where it cannot be known to be that of the run."""
    lines = (unchanged(path, report) or "").split("\n")
    return lines[line - 1].strip()[:_LONGEST] if 0 < line <= len(lines) else ""


def unchanged(path: str, report: Report) -> str | None:
    """The source of a run, if its file may be read, is on this machine and as old as the run."""
    if report.hostname != platform.node():
        return None
    sources = SourceFiles(lambda: report.root, report.sources)
    found = sources.path(path)
    try:
        is_old = found is not None and found.stat().st_mtime <= report.started
    except OSError:
        return None
    return sources.read(path) if is_old else None


def from_here(path: str, root: str) -> str:
    """The path as one would type it here; as recorded where the file is not on this machine."""
    found = Path(root) / path
    try:
        here = Path(os.environ.get("GITHUB_WORKSPACE") or Path.cwd()).resolve()
        return found.resolve().relative_to(here).as_posix() if found.is_file() else path
    except (OSError, ValueError):  # no working directory, or elsewhere
        return path if Path(path).is_absolute() else found.as_posix()


# Only where the name is called on one line of the script that was run, and nowhere else in it.
def located(finding: Finding, report: Report) -> tuple[Place | None, str]:
    """The line to look at, as the trace tells it, else by its name; and the code there.

    Never raises: a finding is reported also where its line cannot be found.
    """
    try:
        place = place_of(finding, report)
        if place is not None:
            return place, code_of(finding, report)
        place = place_by_name(finding, report)
        return place, code_at(report.program, place.line, report) if place else ""
    except Exception:
        return None, ""


def place_by_name(finding: Finding, report: Report) -> Place | None:
    """The only line that calls what a finding is about; None when there is none, or several."""
    if not finding.subject.api or not report.program:
        return None
    lines = lines_calling(finding.subject.api, unchanged(report.program, report))
    if len(lines) != 1:
        return None
    return Place(path=from_here(report.program, report.root), line=lines.pop())
