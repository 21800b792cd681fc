"""traincheck probe: experiments on copies of a program that trains.

Reads the command line; collect/probes/ makes the experiments, the rules TC00x judge them.
"""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from traincheck.schema.findings import FINDINGS
from traincheck.schema.layout import PROBED
from traincheck.schema.probes.names import Status

from . import _completion
from ._options import SELECTION, configuration, presentation, shared, shared_all
from ._outputs import reports_of, require_writable, watcher_for, write_check_page, write_report
from ._program_args import PROGRAM, ProgramCommand, check_command_line, program_command
from .main import OUR_BUG

if TYPE_CHECKING:
    pass

_TRACES = "traces"
_SCOPE = "only experiments were made: traincheck run --probe also checks the other rules"
_RULES = ("TC00",)


@click.command(cls=ProgramCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument(
    "script", required=False, metavar="SCRIPT [ARGS]...", shell_complete=_completion.files
)
@shared("output_folder")
@click.option(
    "--continue",
    "goes_on",
    is_flag=True,
    help="Let the program run to its end. [default: end it after the last experiment]",
)
@shared_all(*SELECTION)
@shared("reports")
@shared("html")
@click.pass_context
def probe(ctx: click.Context, /, **options: Any) -> int:
    """Test how a program trains by experiments on copies of its process.

    At the 3rd and 12th step of each model, copies of the process change one thing that must not
    matter, and compute the result or the loss again: another sample of the batch, the content of
    padding, later tokens, in-place activations. One experiment moves the parameters along the
    gradient: the loss must change by what the gradient says. The program itself is not changed.

    \b
    Examples:
      traincheck probe train.py
      traincheck probe --continue train.py --lr 0.1
      traincheck probe -- python -m package.train
      traincheck run --probe train.py

    Probes need Linux and a model on the CPU. Models on other devices, compiled models and process
    groups are reported as not observable.

    \b
    Exit status, the first that applies:
      1  findings at or above --fail-on
      n  exit status of the program, if it is not 0 and no experiment ended it
      3  a bug of traincheck, also in an experiment
      4  nothing was checked: no experiment could be made
      0  none of these
      2  bad input or usage; the program was not started
    """  # noqa: D301  # click reads the escape
    from traincheck.api import make_engine
    from traincheck.collect.launch.launcher import launch, new_run_id
    from traincheck.collect.launch.settings import Settings
    from traincheck.report.run_summary import RunSummary

    from ._live import LiveCheck, StopAt, write_summary

    command = program_command(ctx.meta[PROGRAM], "traincheck probe")
    formats = reports_of(options["reports"])
    require_writable(options["html"])
    config = configuration(options)
    shown = presentation(options, config)
    # The rules about probes, or those of them that are selected.
    engine = make_engine(config=config if options["select"] else config.narrowed(_RULES, ()))
    run_id = new_run_id(command)
    directory = Path(options["output"] or Path(_TRACES) / run_id)
    settings = Settings(
        directory=str(directory.absolute()), run_id=run_id, needs=engine.needs, probe=True
    )
    live = LiveCheck(engine, Path(settings.directory))
    live.watcher = watcher_for(options["html"])
    stopper = StopAt(Path(settings.directory), PROBED, is_on=not options["goes_on"])

    def start(process: subprocess.Popen[bytes]) -> None:
        live.start(process)
        stopper.start(process)

    try:
        outcome = launch(command, settings, on_start=start)
    finally:
        stopper.end()
    report = replace(live.finish(), presentation=shown)
    check = check_command_line(directory, options)
    write_summary(
        RunSummary(
            report=report,
            watched=live.watched,
            trace=f"{directory}; full report: {check}",
            check=check,
            is_probed=True,
            scope="" if options["select"] else _SCOPE,
        )
    )
    for write, path in formats:
        write_report(report, write, path)
    write_check_page(options["html"], directory, report, live.watcher)
    is_ours = any(event.status == Status.FAILED for event in live.watched.probes)
    status = OUR_BUG if is_ours and report.exit_status != FINDINGS else report.exit_status
    if status == FINDINGS or stopper.has_stopped:
        return status
    return outcome.exit_status or status
