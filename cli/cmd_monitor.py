"""traincheck monitor and traincheck metrics: record the metrics of a training program, show them.

Read the command line; collect/launch/launcher.py runs the program, metrics/ reads the trace.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from traincheck.errors import TraincheckError, UsageError
from traincheck.schema.metrics.requests import (
    COMPARED,
    DEFAULT,
    DIFFERENCES,
    INITIAL,
    MetricRequest,
    MonitorView,
    checked,
    parse_requests,
    request,
)
from traincheck.schema.words import printable

from . import _completion
from ._options import form, overridden, shared
from ._os_errors import ignore_closed_stderr, line_start, say
from ._program_args import PROGRAM, ProgramCommand, program_command

if TYPE_CHECKING:
    from traincheck.collect.launch.launcher import Outcome
    from traincheck.config import MetricConfig, MonitorConfig

_EVERY, _WARMUP = 20, 10
_STEPS = 2  # numbers in a range of steps
_SHOWN = 12  # rows of a table at the end of a run


@click.command(cls=ProgramCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument(
    "script", required=False, metavar="SCRIPT [ARGS]...", shell_complete=_completion.files
)
@shared("output_folder")
@shared("every", help=f"Measure every N-th step.  [default: {_EVERY}]")
@shared("warmup", help=f"Also measure the first N steps.  [default: {_WARMUP}]")
@click.option(
    "--metrics",
    metavar="KIND:STATISTICS",
    multiple=True,
    help="What to measure, e.g. act:rms,absmax or attn:entropy. Kinds: act, in, act_grad, param, "
    "grad, clip, update, state, attn; with a reference also diff and param_diff. Repeatable. "
    f"[default: {' '.join(DEFAULT)}, and {' '.join(DIFFERENCES)} with a reference]",
)
@click.option(
    "--modules",
    metavar="REGEX",
    help="Only modules and variables whose name matches from its beginning, e.g. '.*attn.*'.",
)
@click.option("--exclude", metavar="REGEX", help="Not those whose name matches.")
@click.option(
    "--plugin",
    metavar="FILE",
    shell_complete=_completion.files,
    multiple=True,
    help="Python file with metrics of your own, marked with @traincheck.metric. Repeatable.",
)
@click.option(
    "--reference",
    metavar="init|FILE",
    shell_complete=_completion.files,
    help="Compare outputs and parameters with a copy of the model: as it is when its training "
    "begins, or with the weights of a file.",
)
@click.option(
    "--rcc",
    is_flag=True,
    help="Refined coordinate check: how much of the change of each layer's output comes from its "
    "weights, and how much from its input.",
)
@shared(
    "tracker",
    help="Also send the metrics to wandb, mlflow, tensorboard or another tracker, at the end.",
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
      traincheck monitor --reference init --rcc train.py
      traincheck monitor -- torchrun --nproc-per-node 2 train.py

    Options may also stand in [tool.traincheck.monitor] of pyproject.toml. Put options of
    traincheck before the script; all words after it are passed to the script.

    \b
    Exit status: that of the program, 128+n if signal n ended it; 2 if it could not be started.
    """  # noqa: D301  # click reads the escape
    from traincheck.collect.launch.launcher import launch, new_run_id
    from traincheck.collect.launch.settings import Settings
    from traincheck.config import load_config
    from traincheck.schema.claims import Needs

    command = program_command(ctx.meta[PROGRAM], "traincheck monitor")
    config = overridden(load_config().monitor, options, " in [monitor]")
    run_id = new_run_id(command)
    directory = Path(config.output or Path("traces") / run_id)
    settings = Settings(
        directory=str(directory.absolute()),
        run_id=run_id,
        every=_EVERY if config.every is None else config.every,
        warmup=_WARMUP if config.warmup is None else config.warmup,
        whole=True,
        needs=Needs(),
        monitor=_view(config).to_json(),
    )
    outcome = launch(command, settings)
    if options["to"]:
        say(_sent(directory, options["to"]))
    if not options["quiet"]:
        with ignore_closed_stderr():
            sys.stderr.write(line_start(sys.stderr))
            for line in _summary(outcome, directory):
                click.echo(line, err=True)
    return outcome.exit_status


def _view(config: MonitorConfig) -> MonitorView:
    checked(config.modules, "--modules")
    checked(config.exclude, "--exclude")
    for plugin in config.plugin:
        if not Path(plugin).is_file():
            raise UsageError(f"--plugin {plugin!r} is not a file", fix="name a Python file")
    # INITIAL, the absolute path of a file, or nothing.
    given = config.reference or (INITIAL if config.rcc else "")
    if given in ("", INITIAL):
        reference = given
    else:
        if not Path(given).is_file():
            raise UsageError(
                f"--reference {given!r} is not a file",
                fix=f"name a file with a state dict, or write --reference {INITIAL}",
            )
        reference = str(Path(given).absolute())
    usual = (*DEFAULT, *DIFFERENCES) if reference else DEFAULT
    requests = tuple(map(_request, config.metrics or usual))
    if not reference and any(one.on in COMPARED for one in requests):
        raise UsageError("differences need a reference", fix="add --reference init")
    return MonitorView(
        requests=requests,
        modules=config.modules,
        exclude=config.exclude,
        plugins=tuple(str(Path(plugin).absolute()) for plugin in config.plugin),
        reference=reference,
        coordinates=config.rcc,
    )


def _request(given: str | MetricConfig) -> MetricRequest:
    if isinstance(given, str):
        return parse_requests([given])[0]
    return request(given.on, given.statistics, modules=given.modules, per=given.per)


def _sent(directory: Path, name: str) -> str:
    """Send the metrics. Returns a line about it: the status stays that of the program."""
    from traincheck.metrics.trace import read_run
    from traincheck.metrics.trackers import send, tracker_of

    try:
        found = read_run(directory)
        send(found, tracker_of(name))
    except Exception as error:  # of a tracker: any
        again = f"traincheck metrics {shlex.quote(str(directory))} --to {name}"
        return f"traincheck: the metrics were not sent to {name}: {error}; try again: {again}"
    return f"traincheck: {len(found):,} metrics sent to {name}"


def _summary(outcome: Outcome, directory: Path) -> Iterator[str]:
    """The lines after the output of the program."""
    from traincheck.metrics.notable import notable
    from traincheck.metrics.table import layer_tables
    from traincheck.metrics.trace import overview, read_run

    where = shlex.quote(str(directory))
    try:
        found = read_run(directory)
        yield f"traincheck: {overview(directory, found)}"
        yield ""
        yield from layer_tables(found, _SHOWN)
        for line in notable(found):
            yield f"notable   {printable(line)}"
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


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("directory", metavar="DIR", shell_complete=_completion.folders)
@click.option(
    "--select",
    metavar="PATTERN",
    multiple=True,
    help="Show only metrics whose key matches, e.g. 'activation/*/rms'; * matches anything. "
    "Repeatable.",
)
@click.option("--steps", metavar="A:B", help="Show only steps A to B, without B.")
@click.option(
    "--by",
    type=click.Choice(["layer", "step"]),
    default="layer",
    show_default=True,
    help="One row for each module or variable, or one for each number of each step.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=40,
    show_default=True,
    help="Rows of each table; 0 for all.",
)
@form("text", "csv", "json")
@shared("tracker")
def metrics(
    directory: str,
    *,
    select: tuple[str, ...],
    steps: str | None,
    by: str,
    limit: int,
    form: str,
    to: str | None,
) -> None:
    """Show the metrics of a run that was recorded with `traincheck monitor`.

    Numbers of micro-batches, calls and ranks are combined exactly. The trend shows the course from
    the first to the last step.

    \b
    Examples:
      traincheck metrics traces/m1
      traincheck metrics traces/m1 --select 'activation/*/rms' --steps 100:200
      traincheck metrics traces/m1 --by step --format csv > metrics.csv
      WANDB_MODE=offline traincheck metrics traces/m1 --to wandb
    """  # noqa: D301  # click reads the escape
    from traincheck.metrics.formats import write_csv, write_json
    from traincheck.metrics.notable import notable
    from traincheck.metrics.table import layer_tables, step_table
    from traincheck.metrics.trace import read_run

    found = read_run(directory).select(*select, steps=_range(steps))
    if not found:
        raise UsageError(
            f"no metric of {directory} matches these options",
            fix=f"traincheck metrics {directory} lists what there is",
        )
    if to is not None:
        from traincheck.metrics.trackers import send, tracker_of

        send(found, tracker_of(to))
        click.echo(f"{len(found):,} metrics of {len(found.steps):,} steps sent to {to}", err=True)
    elif form == "csv":
        write_csv(found, sys.stdout)
    elif form == "json":
        write_json(found, sys.stdout)
    else:
        lines = layer_tables(found, limit) if by == "layer" else step_table(found, limit)
        for line in lines:
            click.echo(line)
        for line in notable(found):
            click.echo(f"notable: {printable(line)}", err=True)
    for one in found.failed:
        click.echo(
            f"failed: metric {one.get('metric')!r} of {one.get('on')}: {one.get('error')}, at step "
            f"{one.get('step')}; not taken since",
            err=True,
        )
    for note in found.notes:
        click.echo(f"note: {note}", err=True)


def _range(text: str | None) -> range | None:
    """The steps of ``a:b``; either end may be left out."""
    if text is None:
        return None
    parts = text.split(":")
    if len(parts) == _STEPS and all(not p or p.isdecimal() for p in parts):
        return range(int(parts[0] or 0), int(parts[1] or 1 << 62))
    raise UsageError(f"--steps is {text!r}", fix="for example --steps 100:200")
