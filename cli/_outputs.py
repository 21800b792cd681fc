"""Files that commands write. A path that cannot be used is refused before the work begins."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from traincheck.errors import OutputError, UsageError
from traincheck.report.registry import FORMATS, Format, load_format

from . import _completion

if TYPE_CHECKING:
    from traincheck.schema.findings import Report

_Decorated = TypeVar("_Decorated", bound=Callable[..., Any])
_FIX = "choose a file in a writable directory"
FORMAT_NAMES = f"{', '.join(FORMATS.built_in)}, or a format that an installed package adds"

report_option = click.option(
    "--report",
    "reports",
    metavar="FORMAT=FILE",
    shell_complete=_completion.reports,
    multiple=True,
    help=f"Also write the report to FILE: {FORMAT_NAMES}. Repeatable.",
)
force_option = click.option("--force", is_flag=True, help="Overwrite the output file if it exists.")


def require_writable(output: str | None, *, replaces: bool = True) -> None:
    """Check that a file can be written, before the work for it begins.

    Args:
        output: its path; None is fine.
        replaces: whether a file that exists may be replaced.

    Raises:
        OutputError: it is a directory, or would lie in something that is not a directory.
        UsageError: it exists and may not be replaced.
    """
    if output is None:
        return
    path = Path(output)
    if path.is_dir():
        raise OutputError(f"{output}: cannot be written: it is a directory", fix=_FIX)
    if not path.parent.is_dir():
        reason = f"{path.parent} is not a directory"
        raise OutputError(f"{output}: cannot be written: {reason}", fix=_FIX)
    if not replaces and path.is_file():
        raise UsageError(
            f"{output} already exists",
            fix="choose another file with -o, or overwrite this one with --force",
        )


def reports_of(values: Sequence[str]) -> list[tuple[Format, str]]:
    """The function and the file of each --report.

    Raises:
        UsageError: one is not FORMAT=FILE, or there is no such format.
        OutputError: a file cannot be written.
    """
    found = []
    for value in values:
        form, _, path = value.partition("=")
        if not path:
            raise UsageError(
                f"--report {value} names no file", fix="write FORMAT=FILE, e.g. json=report.json"
            )
        found.append((load_format(form), path))
        require_writable(path)
    return found


def write_report(report: Report, write: Format, output: str | None) -> None:
    """Write a report to a file, or to stdout.

    Raises:
        OutputError: the file cannot be written.
    """
    if output is None:
        write(report, sys.stdout)
        return
    try:
        with Path(output).open("w", encoding="utf-8", errors="backslashreplace") as stream:
            write(report, stream)
    except OSError as error:
        raise OutputError(
            f"{output}: cannot be written: {error.strerror or error}", fix=f"{_FIX} with room"
        ) from error
