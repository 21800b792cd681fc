"""traincheck monitor: record the metrics of a training program, and show them at its end.

Reads the command line; collect/launch/launcher.py runs the program, metrics/ reads the trace.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from traincheck.collect.launch.settings import MOST_STEPS
from traincheck.errors import TraincheckError, UsageError
from traincheck.schema.metrics.requests import DEFAULT, MonitorView, checked, parse_requests

from . import _completion
from ._broken_pipe import ignore_closed_stderr, line_start
from ._program_args import PROGRAM, ProgramCommand, program_command

if TYPE_CHECKING:
    from traincheck.collect.launch.launcher import Outcome

_EVERY, _WARMUP = 20, 10
_SHOWN = 12  # rows of a table at the end of a run


@click.command(cls=ProgramCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument(
    "script", required=False, metavar="SCRIPT [ARGS]...", shell_complete=_completion.files
)
@click.option(
    "-o",
    "--output",
    metavar="DIR",
    shell_complete=_completion.folders,
    help="New folder for the trace. [default: a new one under traces/]",
)
@click.option(
    "--every",
    type=click.IntRange(min=1, max=MOST_STEPS),
    default=_EVERY,
    show_default=True,
    metavar="N",
    help="Measure every N-th step.",
)
@click.option(
    "--warmup",
    type=click.IntRange(min=0, max=MOST_STEPS),
    default=_WARMUP,
    show_default=True,
    metavar="N",
    help="Also measure the first N steps.",
)
@click.option(
    "--metrics",
    metavar="KIND:STATISTICS",
    multiple=True,
    help="What to measure, e.g. act:rms,absmax or attn:entropy. Kinds: act, in, act_grad, param, "
    "grad, clip, update, state, attn. Repeatable. "
    f"[default: {' '.join(DEFAULT)}]",
)
@click.option(
    "--modules",
    metavar="REGEX",
    default="",
    help="Only modules and variables whose name matches from its beginning, e.g. '.*attn.*'.",
)
@click.option("--exclude", metavar="REGEX", default="", help="Not those whose name matches.")
@click.option(
    "--plugin",
    "plugins",
    metavar="FILE",
    shell_complete=_completion.files,
    multiple=True,
    help="Python file with metrics of your own, marked with @traincheck.metric. Repeatable.",
)
@click.option(
    "--to",
    type=click.Choice(["wandb", "mlflow", "tensorboard"]),
    help="Also send the metrics to an experiment tracker, when the program has ended.",
)
@click.option("--quiet", is_flag=True, help="Do not print the metrics when the run has ended.")
@click.pass_context
def monitor(ctx: click.Context, /, **options: Any) -> int:
    """Run a training program and record metrics of its modules and variables.

    Measures activations, parameters, gradients as the optimizer gets them, and updates. Steps
    between the measured ones cost next to nothing, and training is bit-identical. The program and
    its output are not changed; a table follows on stderr.

    \b
    Statistics:
      mean, rms, norm, std, var, min, max, absmax, absmean, sum, zeros, nonfinite, count,
      skewness, kurtosis; of updates also ratio; of attention entropy, max_logit, query_norm,
      key_norm, value_norm

    \b
    Examples:
      traincheck monitor train.py
      traincheck monitor --every 100 --metrics act:rms,kurtosis --modules '.*mlp.*' train.py
      traincheck monitor --metrics attn:entropy,max_logit train_gpt.py --layers 4
      traincheck monitor -- torchrun --nproc-per-node 2 train.py

    Put options of traincheck before the script; all words after it are passed to the script.

    \b
    Exit status: that of the program, 128+n if signal n ended it; 2 if it could not be started.
    """  # noqa: D301  # click reads the escape
    from traincheck.collect.launch.launcher import launch, new_run_id
    from traincheck.collect.launch.settings import Settings
    from traincheck.schema.claims import Needs

    command = program_command(ctx.meta[PROGRAM], "traincheck monitor")
    run_id = new_run_id(command)
    directory = Path(options["output"] or Path("traces") / run_id)
    settings = Settings(
        directory=str(directory.absolute()),
        run_id=run_id,
        every=options["every"],
        warmup=options["warmup"],
        whole=True,
        needs=Needs(),
        monitor=_view(options).to_json(),
    )
    outcome = launch(command, settings)
    if options["to"]:
        with ignore_closed_stderr():
            click.echo(line_start(sys.stderr) + _sent(directory, options["to"]), err=True)
    if not options["quiet"]:
        with ignore_closed_stderr():
            sys.stderr.write(line_start(sys.stderr))
            for line in _summary(outcome, directory):
                click.echo(line, err=True)
    return outcome.exit_status


def _view(options: dict[str, Any]) -> MonitorView:
    checked(options["modules"], "--modules")
    checked(options["exclude"], "--exclude")
    for plugin in options["plugins"]:
        if not Path(plugin).is_file():
            raise UsageError(f"--plugin {plugin!r} is not a file", fix="name a Python file")
    return MonitorView(
        requests=parse_requests(options["metrics"] or DEFAULT),
        modules=options["modules"],
        exclude=options["exclude"],
        plugins=tuple(str(Path(plugin).absolute()) for plugin in options["plugins"]),
    )


def _sent(directory: Path, name: str) -> str:
    """Send the metrics. Returns a line about it: the status stays that of the program."""
    from traincheck.metrics.sinks import send, sink_of
    from traincheck.metrics.trace import read_run

    try:
        found = read_run(directory)
        send(found, sink_of(name))
    except Exception as error:  # of a tracker: any
        again = f"traincheck metrics {shlex.quote(str(directory))} --to {name}"
        return f"traincheck: the metrics were not sent to {name}: {error}; try again: {again}"
    return f"traincheck: {len(found):,} metrics sent to {name}"


def _summary(outcome: Outcome, directory: Path) -> Iterator[str]:
    """The lines after the output of the program."""
    from traincheck.metrics.table import layer_tables
    from traincheck.metrics.trace import overview, read_run

    where = shlex.quote(str(directory))
    try:
        found = read_run(directory)
        yield f"traincheck: {overview(directory, found)}"
        yield ""
        yield from layer_tables(found, _SHOWN)
        for one in found.failed:
            yield (
                f"failed    metric {one.get('metric')!r} of {one.get('on')}: {one.get('error')}, "
                f"at step {one.get('step')}; not taken since"
            )
        for note in (*outcome.notes, *found.notes):
            yield f"note      {note}"
        yield f"stored    {where}; show again: traincheck metrics {where}"
    except TraincheckError as error:  # the status of the program matters more
        yield f"traincheck: no metrics in {where}: {error.message}"
        for note in outcome.notes:
            yield f"note      {note}"
