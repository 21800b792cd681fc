"""The forms a report can be written in: ours by the name that ``--format`` knows, and others'."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import TextIO

from traincheck.errors import UsageError
from traincheck.report.github_report import write_github
from traincheck.report.json_report import write_json
from traincheck.report.junit_report import write_junit
from traincheck.report.sarif_report import write_sarif
from traincheck.report.text_report import write_text
from traincheck.schema.findings import Report

ENTRY_POINTS = "traincheck.report_sinks"

Sink = Callable[[Report, TextIO], None]

SINKS: Mapping[str, Sink] = {
    "text": write_text,
    "json": write_json,
    "junit": write_junit,
    "sarif": write_sarif,
    "github": write_github,
}


def all_sinks() -> dict[str, Sink]:
    """The table, then the sinks that other packages offer as entry points.

    Raises:
        UsageError: a package offers a sink whose name is taken, or one that cannot be loaded.
    """
    sinks = dict(SINKS)
    for entry in sorted(entry_points(group=ENTRY_POINTS), key=lambda e: (e.name, e.value)):
        if entry.name in sinks:
            raise UsageError(
                f"{entry.value} offers report format {entry.name!r}, which exists already",
                fix="uninstall the package or rename its format",
            )
        try:
            sinks[entry.name] = entry.load()
        except Exception as error:  # whatever a foreign module may raise
            raise UsageError(
                f"report format {entry.name!r} cannot be loaded: {type(error).__name__}: {error}",
                fix="repair or uninstall the package that offers it",
            ) from error
    return sinks
