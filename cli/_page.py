"""The option --html, and the file that it writes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from traincheck.errors import OutputError

from . import _completion

if TYPE_CHECKING:
    from traincheck.diff.difference import Difference
    from traincheck.page.build import Watcher
    from traincheck.profile.numbers import Profile
    from traincheck.schema.findings import Report

html_option = click.option(
    "--html",
    metavar="FILE",
    shell_complete=_completion.files,
    help="Also write the result as one HTML page, see traincheck report.",
)


def write_page(
    path: str | None,
    run: Path | str,
    *,
    difference: Difference | None = None,
    profile: Profile | None = None,
) -> None:
    """Write the page of a comparison or a profile; nothing without a path.

    Args:
        path: the file.
        run: the recorded run, which is read for curves and maps.
        difference: of two runs or ranks.
        profile: of the layers.

    Raises:
        TraceFormatError: the run cannot be read.
        OutputError: the file cannot be written.
    """
    if path is None:
        return
    from traincheck.page.build import Shown, page_of
    from traincheck.store.reader import TraceReader

    other = None
    if difference is not None and Path(difference.a) != Path(run):
        other = TraceReader(difference.a, may_be_empty=True)
    shown = Shown(difference=difference, profile=profile)
    save_page(path, page_of(TraceReader(run, may_be_empty=True), shown, against=other))


def watcher_for(path: str | None) -> Watcher | None:
    """Takes in the events of a check for its page; None without a path."""
    if path is None:
        return None
    from traincheck.page.build import Watcher

    return Watcher()


def write_check_page(
    path: str | None, run: Path | str, report: Report, watcher: Watcher | None
) -> None:
    """Write the page of a check; nothing without a path.

    Args:
        path: the file.
        run: its folder; only the manifest is read.
        report: of the check.
        watcher: has taken in the events of the run.

    Raises:
        OutputError: the file cannot be written.
    """
    if path is None or watcher is None:
        return
    from traincheck.page.build import Shown, page_from
    from traincheck.store.reader import TraceReader

    reader = TraceReader(run, may_be_empty=True)
    save_page(path, page_from(watcher, reader, Shown(report=report)))


def save_page(path: str, html: str) -> None:
    """Write a page.

    Raises:
        OutputError: the file cannot be written.
    """
    try:
        Path(path).write_text(html, encoding="utf-8")
    except OSError as error:
        raise OutputError(
            f"{path}: cannot be written: {error.strerror or error}",
            fix="choose a file in a writable directory with room",
        ) from error
