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
    return Place(path=_from_here(path, report.root), line=int(line))


def code_of(finding: Finding, report: Report) -> str:
    """The line itself; empty when its file is not here, or may have changed since the run."""
    path, _, number = (where(finding.evidence) or "").rpartition(":")
    if not path or not number.isdecimal() or report.hostname != platform.node():
        return ""
    try:
        found = Path(report.root) / path
        if not found.is_file() or found.stat().st_mtime > report.started:
            return ""
        with found.open(encoding="utf-8", errors="replace") as lines:
            line = next(islice(lines, int(number) - 1, None), "")
    except (OSError, ValueError):
        return ""
    return line.strip()[:_LONGEST]


def _from_here(path: str, root: str) -> str:
    """The path as one would type it here; as recorded where the file is not on this machine."""
    found = Path(root) / path
    try:
        here = Path(os.environ.get("GITHUB_WORKSPACE") or Path.cwd()).resolve()
        return found.resolve().relative_to(here).as_posix() if found.is_file() else path
    except (OSError, ValueError):  # no working directory, or elsewhere
        return path if Path(path).is_absolute() else found.as_posix()
