"""The formats of a report: ours by the name that ``--format`` knows, and those of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import TextIO

from traincheck.errors import UsageError
from traincheck.packages import Registry
from traincheck.schema.findings import Report

Format = Callable[[Report, TextIO], None]

FORMATS = Registry(
    "traincheck.report_sinks",
    "format",
    {
        name: f"traincheck.report.{name}_report:write_{name}"
        for name in ("text", "json", "junit", "sarif", "github", "markdown")
    },
    title="report format",
)


def load_format(name: str) -> Format:
    """The function that writes a report in a format.

    Raises:
        UsageError: there is no such format, or it cannot be loaded.
    """
    entry = FORMATS.find(name)
    try:
        found: Format = entry.load()
    except Exception as error:  # whatever a foreign module may raise
        raise UsageError(
            f"report format {name!r} cannot be loaded: {type(error).__name__}: {error}",
            fix="repair or uninstall the package that offers it",
        ) from error
    return found
