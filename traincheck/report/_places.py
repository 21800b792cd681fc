"""Where in the source a finding points, for the forms of a report that show source."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from traincheck.check.findings import where
from traincheck.schema.findings import Finding, Report

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
    path, _, line = (where(finding.evidence) or "").rpartition(":")
    if not path or not line.isdecimal():
        return None
    return Place(path=from_here(path, report.root), line=int(line))


def code_of(finding: Finding, report: Report) -> str:
    """The line itself; empty when its file is not here, or may have changed since the run."""
    path, _, number = (where(finding.evidence) or "").rpartition(":")
    return code_at(path, int(number), report) if path and number.isdecimal() else ""


def code_at(path: str, line: int, report: Report) -> str:
    """A line of a file; empty where it cannot be known to be that of the run."""
    found = unchanged(path, report)
    if found is None:
        return ""
    try:
        with found.open(encoding="utf-8", errors="replace") as lines:
            return next(islice(lines, line - 1, None), "").strip()[:_LONGEST]
    except (OSError, ValueError):
        return ""


def unchanged(path: str, report: Report) -> Path | None:
    """The file that a run used, if it is on this machine and as old as the run."""
    if report.hostname != platform.node():
        return None
    found = Path(report.root) / path
    try:
        is_old = found.is_file() and found.stat().st_mtime <= report.started
    except (OSError, ValueError):
        return None
    return found if is_old else None


def from_here(path: str, root: str) -> str:
    """The path as one would type it here; as recorded where the file is not on this machine."""
    found = Path(root) / path
    try:
        here = Path(os.environ.get("GITHUB_WORKSPACE") or Path.cwd()).resolve()
        return found.resolve().relative_to(here).as_posix() if found.is_file() else path
    except (OSError, ValueError):  # no working directory, or elsewhere
        return path if Path(path).is_absolute() else found.as_posix()
