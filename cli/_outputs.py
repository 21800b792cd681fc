"""Where results go: files, pages and receivers. A path that cannot be used is refused early."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traincheck.errors import OutputError, UsageError
from traincheck.report.registry import Format, load_format

if TYPE_CHECKING:
    from traincheck.config import Config
    from traincheck.diff.difference import Difference
    from traincheck.page.build import Watcher
    from traincheck.profile.numbers import Profile
    from traincheck.receivers.notifier import Notifier
    from traincheck.receivers.routes import Route
    from traincheck.schema.findings import Finding, Report

_FIX = "choose a file in a writable directory"


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


def chosen_routes(options: dict[str, Any], config: Config) -> list[Route]:
    """The receivers of the options and the configuration.

    Raises:
        UsageError: a receiver or a setting is unknown.
    """
    if not (options["to"] or options["on_finding"] or config.sinks):
        return []
    from traincheck.receivers.routes import routes

    return routes(options["to"], config.sinks, options["on_finding"], path=str(config.path or ""))


@contextlib.contextmanager
def notifying(
    routes: list[Route],
    directory: Path,
    *,
    is_known: Callable[[Finding], bool] | None = None,
    is_silent: bool = False,
) -> Iterator[Notifier]:
    """The notifier of a run. At the end, receivers are waited for; Ctrl-C ends the waiting.

    is_known: whether a finding is in the baseline.
    is_silent: hold lines for the user back until the notifier may speak.
    """
    from traincheck.receivers.messages import RunName
    from traincheck.receivers.notifier import Notifier

    from ._terminal import write_message

    run = RunName(id=directory.absolute().name, trace=str(directory.absolute()))
    tell = partial(write_message, is_written=False)
    notifier = Notifier(routes, run, tell, is_known=is_known, is_silent=is_silent)
    try:
        yield notifier
    finally:
        try:
            notifier.close()
        except KeyboardInterrupt:  # the result of the check stands
            tell("receivers: interrupted; messages that are not sent yet are lost")
