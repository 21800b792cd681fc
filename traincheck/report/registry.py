"""The forms a report can be written in: ours by the name that ``--format`` knows, and others'."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import TextIO

from traincheck.errors import UsageError
from traincheck.schema.findings import Report

ENTRY_POINTS = "traincheck.report_sinks"

Sink = Callable[[Report, TextIO], None]

# As those of other packages: a name costs nothing, and only what is asked for is loaded.
SINKS = {
    name: EntryPoint(name, f"traincheck.report.{name}_report:write_{name}", ENTRY_POINTS)
    for name in ("text", "json", "junit", "sarif", "github", "markdown")
}


def all_sinks() -> dict[str, EntryPoint]:
    """The table, then the sinks that other packages offer as entry points.

    Raises:
        UsageError: a package offers a sink whose name is taken.
    """
    sinks = dict(SINKS)
    for entry in sorted(entry_points(group=ENTRY_POINTS), key=lambda e: (e.name, e.value)):
        if entry.name in sinks:
            raise UsageError(
                f"{entry.value} offers report format {entry.name!r}, which exists already",
                fix="uninstall the package or rename its format",
            )
        sinks[entry.name] = entry
    return sinks


def load_sink(name: str) -> Sink:
    """The function that writes a report in a format.

    Raises:
        UsageError: there is no such format, or it cannot be loaded.
    """
    sinks = all_sinks()
    if name not in sinks:
        raise UsageError(f"no report format {name!r}", fix=f"one of {', '.join(sinks)}")
    try:
        sink: Sink = sinks[name].load()
    except Exception as error:  # whatever a foreign module may raise
        raise UsageError(
            f"report format {name!r} cannot be loaded: {type(error).__name__}: {error}",
            fix="repair or uninstall the package that offers it",
        ) from error
    return sink
