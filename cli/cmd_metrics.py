"""traincheck metrics: show the metrics of a monitored run."""

from __future__ import annotations

import sys

import click

from traincheck.errors import UsageError
from traincheck.schema.words import printable

from . import _completion

_STEPS = 2  # numbers in a range of steps


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
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "csv", "json"]),
    default="text",
    show_default=True,
    help="Format of the output.",
)
@click.option(
    "--to",
    type=click.Choice(["wandb", "mlflow", "tensorboard"]),
    help="Send the metrics to an experiment tracker instead, as its own settings say.",
)
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
