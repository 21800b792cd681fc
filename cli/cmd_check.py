"""traincheck-check: check a recorded or live run.

Reads the command line; traincheck.api does the work.
"""

from __future__ import annotations

import contextlib
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO

import click

from traincheck.errors import UsageError
from traincheck.presets import preset_path
from traincheck.report.registry import Format, load_format
from traincheck.schema.findings import FINDINGS
from traincheck.schema.words import counted

from . import _completion
from ._options import (
    FORMAT_NAMES,
    RECEIVERS,
    SELECTION,
    configuration,
    presentation,
    shared,
    shared_all,
)
from ._outputs import (
    chosen_routes,
    notifying,
    reports_of,
    require_writable,
    watcher_for,
    write_check_page,
    write_report,
)
from ._program_args import require_checks

if TYPE_CHECKING:
    from traincheck.check.engine import Engine
    from traincheck.check.suppression.policy import Baseline
    from traincheck.config import Config
    from traincheck.live.checked import CheckNotes
    from traincheck.live.following import Following
    from traincheck.page.build import Watcher
    from traincheck.receivers.notifier import Notifier
    from traincheck.schema.events import Event
    from traincheck.schema.findings import Report
    from traincheck.store.reader import TraceReader
    from traincheck.store.tail import TailReader

_REFRESH_S = 0.1
_PATIENCE_S = 1.0
_SHOWN_RUNS = 10
_WATCHER = "traincheck-progress"


def _single_run(
    context: click.Context, parameter: click.Parameter, runs: tuple[str, ...]
) -> str | None:
    """Refuse several runs: click would silently check the last one."""
    if len(runs) > 1:
        raise UsageError(
            f"{len(runs)} runs were given: {' '.join(map(shlex.quote, runs))}",
            fix="run traincheck-check once per run",
        )
    return runs[0] if runs else None


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("stray", nargs=-1, metavar="")
@click.option(
    "-t",
    "--trace",
    metavar="DIR",
    shell_complete=_completion.folders,
    multiple=True,
    callback=_single_run,
    help="The run to check.  [required]",
)
@shared("invariants")
@shared("presets")
@shared("no_rules")
@click.option("--follow", is_flag=True, help="Follow a live run until it ends.")
@shared("stall_timeout")
@shared_all(*SELECTION)
@shared("baseline")
@click.option(
    "--write-baseline",
    is_flag=True,
    help="Write the findings to the file of --baseline. They do not change the exit status then.",
)
@click.option(
    "--show-suppressed", is_flag=True, help="Also show suppressed findings, with the reason."
)
@click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Show every finding in full, with all checks that it explains, and why checks could not "
    "be decided. sarif: list all checked rules. junit: add cases for undecided checks.",
)
@click.option("--show-info", is_flag=True, help="Show findings of severity info in full.")
@click.option(
    "--format",
    "form",
    metavar="FORM",
    shell_complete=_completion.formats,
    default="text",
    show_default=True,
    help=f"Format of the report: {FORMAT_NAMES}.",
)
@shared("output")
@shared("reports")
@shared("html")
@shared_all(*RECEIVERS)
def check(**options: Any) -> int:
    """Check a run with the built-in rules and with invariants of reference runs.

    The report shows the first finding in full, with its cause and fix. The other findings follow,
    then a summary of the checks that ran and of those that could not be decided. Without a finding,
    the most unusual facts of a finished run follow.

    \b
    Examples:
      traincheck-check -t traces/new
      traincheck-check -t traces/new -i invariant.json
      traincheck-check -t traces/new --preset pytorch --preset amp
      traincheck-check -t traces/live -i invariant.json --follow
      traincheck-check -t traces/new --format sarif -o report.sarif
      traincheck-check -t traces/new --report junit=junit.xml --report json=report.json
      traincheck-check -t traces/new --html report.html
      traincheck-check -t traces/new --to webhook=https://hooks.slack.com/services/...
      traincheck-check -t traces/new --select TC1,TC2 --ignore TC102
      traincheck-check -t traces/new --baseline known.json

    \b
    Exit status:
      0  no finding at or above --fail-on
      1  findings at or above --fail-on
      2  bad input or usage
      3  a bug of traincheck
      4  nothing was checked: no training step was recorded, or no check was triggered
    """  # noqa: D301  # click reads the escape
    _reject_stray_args(options["trace"], options["stray"])
    formats = [
        (_main_format(options), options["output"]),
        *reports_of(options["reports"]),
    ]
    written = options["baseline"] if options["write_baseline"] else None
    for path in (options["output"], options["html"], written):
        require_writable(path)
    config = configuration(options)
    shown = presentation(options, config)
    routes = chosen_routes(options, config)
    baseline = _baseline(options)
    run = one_run(options["trace"], is_live=options["follow"])
    watcher = watcher_for(options["html"])
    with notifying(routes, run, is_known=baseline.contains if baseline else None) as notifier:
        report = _check(run, options, config, baseline, notifier, watcher)
        report = replace(report, presentation=shown)
        if baseline is not None:
            report = baseline.apply(report)
        for write, output in formats:
            write_report(report, write, output)
        write_check_page(options["html"], run, report, watcher)
        _note_suppressed(report, options["form"])
        notifier.report(report)
    if options["write_baseline"]:
        from traincheck.check.suppression.policy import write_baseline

        path = options["baseline"]
        entries = counted(write_baseline(Path(path), report.findings), "finding")
        click.echo(f"traincheck: {entries} written to {path}", err=True)
        return 0 if report.exit_status == FINDINGS else report.exit_status
    return report.exit_status


def _reject_stray_args(trace: str | None, stray: Sequence[str]) -> None:
    if stray:
        words = shlex.join(stray)
        fix = (
            f"check one run at a time: leave out {words}"
            if trace
            else f"traincheck-check -t {words}"
        )
        raise UsageError(f"unexpected argument {stray[0]!r}", fix=fix)
    if trace is None:
        raise UsageError("no run to check", fix="name its folder: traincheck-check -t DIR")


def _shows_facts(options: dict[str, Any]) -> bool:
    """Whether unusual facts follow the report."""
    return options["form"] == "text" and not options["follow"]


def _main_format(options: dict[str, Any]) -> Format:
    """The format of the report. As text, unusual facts follow if a finished run has no finding."""
    write = load_format(options["form"])
    if not _shows_facts(options):
        return write

    def write_with_facts(report: Report, stream: TextIO) -> None:
        from traincheck.facts.card import card_of
        from traincheck.facts.population import shipped
        from traincheck.report.run_summary import write_unusual

        write(report, stream)
        command = f"traincheck facts {shlex.quote(options['trace'])}"
        write_unusual(report, card_of(report.facts, shipped()).unusual, command, stream)

    return write_with_facts


def _baseline(options: dict[str, Any]) -> Baseline | None:
    """The baseline to apply, read before the run is; none when it is to be written."""
    path = options["baseline"]
    if options["write_baseline"]:
        if path is None:
            raise UsageError("--write-baseline needs a file", fix="add --baseline FILE")
        return None
    if path is None:
        return None
    from traincheck.check.suppression.policy import read_baseline

    return read_baseline(Path(path))


def _note_suppressed(report: Report, form: str) -> None:
    """Report suppressed findings on stderr, except for text, which has a line for them."""
    if form == "text" or not report.suppressed or report.presentation.suppressed:
        return
    from traincheck.report.sentences import suppressions

    hint = "show them with --show-suppressed"
    click.echo(f"traincheck: findings: {suppressions(report)}; {hint}", err=True)


def _check(
    run: Path,
    options: dict[str, Any],
    config: Config,
    baseline: Baseline | None,
    notifier: Notifier,
    watcher: Watcher | None,
) -> Report:
    from traincheck.api import check_source, conclude, make_engine, program_of, root_of
    from traincheck.check.suppression.source_files import SourceFiles, trusted_folders
    from traincheck.facts.table import READERS
    from traincheck.store.reader import TraceReader

    invariants = [*options["invariants"], *map(preset_path, options["presets"])]

    def engine(source: TraceReader | TailReader) -> Engine:
        made = make_engine(
            invariants,
            rules=not options["no_rules"],
            config=config,
            sources=SourceFiles(lambda: root_of(source), trusted_folders(run)),
            program=lambda: program_of(source),
            followers=READERS if _shows_facts(options) else (),
        )
        require_checks(made)
        return made

    if options["follow"]:
        from traincheck.live.checked import CheckNotes
        from traincheck.live.following import Following, Sending
        from traincheck.store.tail import TailReader

        from ._terminal import Lines

        with _interrupted() as interrupted:
            stop = _Stop(interrupted)
            tail = TailReader(run, silent_s=options["stall_timeout"], stop=stop)
            made = engine(tail)
            stop.notes = CheckNotes(made, run, baseline=baseline)
            following = Following(
                made,
                tail,
                [Lines(made, is_written=False), stop.notes],
                baseline=baseline,
                watch=() if watcher is None else (watcher.take,),
            )
            following.listeners.append(Sending(notifier, following))
            return _follow(following, tail, interrupted)
    reader = TraceReader(run, may_be_empty=True)
    made = engine(reader)
    with progress(reader):
        if watcher is None:
            return check_source(made, reader)
        watcher.feed(made, reader.events())
        return conclude(made, reader)


class _Stop:
    """Whether following is over. The reader asks for it in each round, also without new events.

    Attributes:
        notes: written then, if there is news since the last time.
    """

    def __init__(self, interrupted: threading.Event) -> None:
        self._interrupted = interrupted
        self.notes: CheckNotes | None = None

    def __call__(self) -> bool:
        if self.notes is not None:
            self.notes.tick()
        return self._interrupted.is_set()


def _follow(following: Following, tail: TailReader, interrupted: threading.Event) -> Report:
    """Check events as they come, as `traincheck run` does, and conclude."""
    try:
        following.feed(_noting_interrupt(interrupted, tail.events()))
    except KeyboardInterrupt:  # it ends the following, not the conclusion
        interrupted.set()
    if not interrupted.is_set() or (tail.manifest is not None and tail.manifest.ended):
        return following.finish()
    return following.finish(["the check was stopped before the run ended"], is_partial=True)


def _noting_interrupt(interrupted: threading.Event, events: Iterable[Event]) -> Iterator[Event]:
    """The events. After an interrupt, one note that the rest is still being checked."""
    noted_at_s = 0.0
    for event in events:
        if interrupted.is_set():
            noted_at_s = noted_at_s or time.monotonic() + _PATIENCE_S
            if time.monotonic() >= noted_at_s:
                noted_at_s = inf
                click.echo(
                    "traincheck: finishing the events recorded so far; press Ctrl-C to stop now",
                    err=True,
                )
        yield event


@contextlib.contextmanager
def _interrupted() -> Iterator[threading.Event]:
    """The first Ctrl-C stops following; events recorded so far are still checked."""
    event = threading.Event()
    previous = signal.getsignal(signal.SIGINT)

    def note(number: int, frame: FrameType | None) -> None:
        event.set()
        signal.signal(signal.SIGINT, previous)  # a second one means it

    if threading.current_thread() is not threading.main_thread() or not callable(previous):
        yield event  # only the main thread may set handlers; nohup ignores the signal
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, previous)


def one_run(path: str, *, is_live: bool = False) -> Path:
    """The run that ``path`` is, or the only one in it.

    Raises:
        UsageError: there is none, or there are several to choose from.
    """
    from traincheck.store.manifest import find_runs, is_bare

    folder = Path(path)
    if is_live and is_bare(folder):
        click.echo(f"traincheck: waiting for a run in {path}", err=True)
        return folder
    runs = find_runs(folder)
    if len(runs) == 1:
        return runs[0]
    shown = "".join(f"\n    traincheck-check -t {run}" for run in runs[:_SHOWN_RUNS])
    left = len(runs) - _SHOWN_RUNS
    more = f"\n    and {left} more" if left > 0 else ""
    raise UsageError(f"{path} holds {len(runs)} runs", fix=f"check one of them:{shown}{more}")


@contextlib.contextmanager
def progress(reader: TraceReader) -> Iterator[None]:
    """A progress bar on stderr while the run is read, if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    columns = (BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=reader.bytes_total)
        done = threading.Event()

        def show() -> None:
            while not done.wait(_REFRESH_S):
                bar.update(task, completed=reader.bytes_read)

        watcher = threading.Thread(target=show, daemon=True, name=_WATCHER)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()
