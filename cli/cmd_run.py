"""traincheck run: record a program, check it while it runs, and summarize at the end.

Reads the command line; collect/launch/launcher.py runs the program, check/engine.py checks.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from traincheck.errors import TraincheckError
from traincheck.schema.findings import FINDINGS

from . import _completion
from ._options import RECEIVERS, SELECTION, Size, configuration, presentation, shared, shared_all
from ._os_errors import say
from ._outputs import (
    chosen_routes,
    notifying,
    reports_of,
    require_writable,
    watcher_for,
    write_check_page,
    write_report,
)
from ._program_args import (
    PROGRAM,
    ProgramCommand,
    check_command_line,
    program_command,
    require_checks,
)

if TYPE_CHECKING:
    from traincheck.check.engine import Engine
    from traincheck.collect.launch.launcher import Outcome
    from traincheck.collect.launch.settings import Settings
    from traincheck.page.build import Watcher
    from traincheck.schema.findings import Report

    from ._live import LiveCheck

_TRACES = "traces"
_MAX_TRACE = 100_000_000  # bytes


@click.command(cls=ProgramCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument(
    "script", required=False, metavar="SCRIPT [ARGS]...", shell_complete=_completion.files
)
@shared("output_folder", help="New folder for the trace; it is kept.")
@click.option(
    "--keep",
    is_flag=True,
    help="Keep the trace, in a folder under traces/, even if there are no findings.",
)
@shared("invariants", help="Also check the invariants of this file. Repeatable.")
@shared("no_rules")
@shared("every")
@shared("warmup")
@shared("stall_timeout")
@shared_all(*SELECTION)
@shared(
    "baseline",
    help="Count the findings of this file, but do not report them. Made with traincheck check "
    "--write-baseline.",
)
@shared("reports")
@shared("html")
@shared_all(*RECEIVERS)
@click.option(
    "--max-trace",
    type=Size(),
    metavar="SIZE",
    help="Drop checked events when the trace exceeds this size, e.g. 500MB; 0 means no limit. "
    "[default: 100MB, or 0 with -o or --keep]",
)
@shared("probe")
@shared("no_source")
@click.option(
    "--live",
    "is_live",
    is_flag=True,
    help="Show the view of traincheck top while the program runs. Its last lines are in the view, "
    "all of its output follows when the view ends. The program gets no input from the keyboard.",
)
@click.option("-v", "--verbose", is_flag=True, help="List the themes of the checks that held.")
@shared("halt")
@click.pass_context
def run(ctx: click.Context, /, **options: Any) -> int:
    """Run a training program and report silent bugs.

    Records the events that the checks need and checks them while the program runs. Findings are
    written to stderr as they come, followed by a summary at the end. The program and its output are
    not changed.

    \b
    Examples:
      traincheck run train.py
      traincheck run train.py --lr 0.1 --epochs 2
      traincheck run -- python -m package.train --lr 0.1
      traincheck run -- torchrun --nproc-per-node 2 train.py
      traincheck run -i invariant.json --every 10 train.py --lr 0.1

    Put options of traincheck before the script; all words after it are passed to the script.

    \b
    Exit status, the first that applies:
      1  findings at or above --fail-on
      n  exit status of the program, if it is not 0; 128+n if signal n ended it
      4  nothing was checked: no training step was recorded, or no check was triggered
      0  none of these
      2  bad input or usage; the program was not started
      3  a bug of traincheck
    """  # noqa: D301  # click reads the escape
    from traincheck.check.suppression.policy import read_baseline
    from traincheck.collect.launch.launcher import launch, new_run_id
    from traincheck.facts.card import card_of
    from traincheck.facts.population import shipped
    from traincheck.report.run_summary import RunSummary

    from ._live import LiveCheck, engine_for, write_summary

    command = program_command(ctx.meta[PROGRAM], "traincheck run")
    formats = reports_of(options["reports"])
    require_writable(options["html"])
    config = configuration(options)
    shown, routes = presentation(options, config), chosen_routes(options, config)
    baseline = read_baseline(Path(options["baseline"])) if options["baseline"] else None
    engine = engine_for(command, options["invariants"], config, rules=not options["no_rules"])
    require_checks(engine)
    run_id = new_run_id(command)
    directory = Path(options["output"] or Path(_TRACES) / run_id)
    had_traces = Path(_TRACES).exists()
    settings = _settings(options, engine, directory=directory, run_id=run_id)
    limit: int | None = options["max_trace"]
    if limit is None and not (options["output"] or options["keep"]):
        limit = _MAX_TRACE
    with notifying(routes, directory, is_silent=options["is_live"]) as notifier:
        live = LiveCheck(
            engine,
            Path(settings.directory),
            halts=options["halt"],
            baseline=baseline,
            stall_s=options["stall_timeout"],
            limit=limit or None,
            is_silent=options["is_live"],
            notifier=notifier,
        )
        live.watcher = watcher_for(options["html"])
        if options["is_live"]:
            outcome = _launch_in_view(command, settings, live)
        else:
            outcome = launch(command, settings, on_start=live.start)
        report = replace(live.finish(), presentation=shown)
        _write_page(options["html"], directory, report, live.watcher)
        has_news = bool(report.findings) or outcome.exit_status != 0
        is_kept = options["output"] or options["keep"] or (has_news and outcome.processes > 0)
        if not is_kept:
            trace = _discard(directory, had_traces=had_traces)
        else:
            gap = live.compact_trace()
            line = check_command_line(directory, options)
            trace = f"{shlex.quote(str(directory))}; full report: {line}"
            trace += f"; {gap}; keep all events with --keep" if gap else ""
        summary = RunSummary(
            report=report,
            watched=live.watched,
            trace=trace,
            check=check_command_line(directory, options),
            is_probed=options["probe"],
            facts=card_of(report.facts, shipped()).unusual,
            card=f"traincheck facts {shlex.quote(str(directory))}" if is_kept else "",
        )
        write_summary(summary)
        for write, path in formats:
            write_report(report, write, path)
        notifier.report(report, has_trace=bool(is_kept))
    status = report.exit_status
    return status if status == FINDINGS else outcome.exit_status or status


def _write_page(path: str | None, directory: Path, report: Report, watcher: Watcher | None) -> None:
    """The page, before the trace may be discarded. The summary is written in any case."""
    try:
        write_check_page(path, directory, report, watcher)
    except Exception as error:  # the training is done: its summary must follow
        reason = error.message if isinstance(error, TraincheckError) else repr(error)
        say(f"traincheck: no page: {reason}")


def _launch_in_view(command: Sequence[str], settings: Settings, live: LiveCheck) -> Outcome:
    from traincheck.collect.launch.launcher import launch
    from traincheck.live.program_view import LiveView

    from ._terminal import write_message

    view = LiveView(Path(settings.directory), live.speak)

    def start(process: subprocess.Popen[bytes]) -> None:
        live.start(process)
        view.start()

    try:
        return launch(command, settings, on_start=start, streams=view.streams)
    finally:
        view.finish()
        if view.failure is not None:
            write_message(f"the view failed with {type(view.failure).__name__}: {view.failure}")


def _settings(options: dict[str, Any], engine: Engine, *, directory: Path, run_id: str) -> Settings:
    from traincheck.collect.launch.settings import Settings
    from traincheck.facts.table import needs_of_facts

    given = {name: options[name] for name in ("every", "warmup") if options[name] is not None}
    return Settings(
        directory=str(directory.absolute()),
        run_id=run_id,
        needs=engine.needs | needs_of_facts(),
        whole="every" in given,
        fold="every" not in given and not options["invariants"],
        probe=options["probe"],
        source=not options["no_source"],
        **given,
    )


def _discard(directory: Path, *, had_traces: bool) -> str:
    """Remove a trace that nobody needs; returns how to keep the next."""
    shutil.rmtree(directory, ignore_errors=True)
    traces = directory.parent
    if not had_traces and traces.name == _TRACES and not any(traces.iterdir()):
        traces.rmdir()
    return "not kept, as there are no findings; keep it with --keep"
