"""traincheck trace: show a recorded run, or convert it."""

from __future__ import annotations

import fnmatch
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from traincheck.errors import OutputError
from traincheck.schema.events import KINDS

from . import _completion
from ._options import form, shared
from .cmd_check import progress

if TYPE_CHECKING:
    from traincheck.schema.events import Event
    from traincheck.store.reader import TraceReader

_METRIC_FILES = ("csv", "hdf5", "json")
_CONTEXT = {"help_option_names": ["-h", "--help"]}


@click.group(context_settings=_CONTEXT)
def trace() -> None:
    """Show or convert a trace.

    \b
    Examples:
      traincheck trace show traces/good
      traincheck trace show traces/good --events --step 3 --api '*zero_grad'
      traincheck trace export traces/good -o good-parquet
      traincheck trace checksums traces/good -o checksums
    """  # noqa: D301  # click reads the escape


@trace.command()
@click.argument("directory", metavar="DIR", shell_complete=_completion.folders)
@form("text", "json")
@click.option(
    "--top",
    type=click.IntRange(min=0),
    default=15,
    show_default=True,
    help="Number of APIs to show.",
)
@click.option("--events", "as_events", is_flag=True, help="Print the events, one per line.")
@click.option(
    "--kind", type=click.Choice(KINDS), multiple=True, help="Print events of this kind. Repeatable."
)
@click.option(
    "--api", metavar="NAME", help="Print calls of this API or family; * matches anything."
)
@click.option(
    "--variable", metavar="NAME", help="Print states of this variable; * matches anything."
)
@click.option("--step", type=click.IntRange(min=0), help="Print events of this step.")
@click.option("--rank", type=click.IntRange(min=0), help="Print events of this rank.")
def show(directory: str, *, form: str, top: int, as_events: bool, **choice: Any) -> None:
    """Show an overview of a run, or print its events.

    Each of --kind, --api, --variable, --step and --rank implies --events.

    \b
    Examples:
      traincheck trace show traces/good
      traincheck trace show traces/good --step 3 --kind step --kind batch
      traincheck trace show traces/good --variable 'Net.fc1.*' --format json
    """  # noqa: D301  # click reads the escape
    from traincheck.store.reader import TraceReader

    from . import _trace_report

    reader = TraceReader(directory)
    if as_events or any(value not in (None, ()) for value in choice.values()):
        event = None
        for event in _chosen(reader, **choice):
            shown = _trace_report.event_json if form == "json" else _trace_report.event_line
            click.echo(shown(event))
        if event is None:
            click.echo(f"traincheck: no event of {directory} matches these options", err=True)
        return
    overview = _trace_report.overview(reader, progress)
    if form == "json":
        click.echo(_trace_report.to_json(overview))
    else:
        _trace_report.print_text(overview, sys.stdout, top)


@trace.command()
@click.argument("directory", metavar="DIR", shell_complete=_completion.folders)
@shared(
    "output_folder",
    required=True,
    help="Write the files to this folder. perfetto: the file, or a folder that exists.",
)
@form(
    "parquet",
    "perfetto",
    *_METRIC_FILES,
    "tensorboard",
    help=(
        "Format of the files. csv, hdf5, json and tensorboard have the metrics of a monitored run."
    ),
)
def export(directory: str, output: str, form: str) -> None:
    """Convert a run to Parquet, one file per kind of event, or to a timeline for Perfetto.

    parquet is lossless, for DuckDB, pandas or Polars. The column "order" is the position of an
    event in the run. Nested values, such as the arguments of a call, are JSON text. The metrics of
    a monitored run are also written as numbers: to metric-values.parquet, or to metrics.csv,
    metrics.h5 or event files of TensorBoard.

    perfetto writes a timeline for ui.perfetto.dev, which opens it in the browser: the calls of each
    thread and rank, steps, loss, learning rates, gradient norms and profiled memory as counters,
    and arrows from each backward pass to the optimizer steps that apply it. Ranks on different
    machines have different clocks.

    \b
    Examples:
      traincheck trace export traces/good -o good-parquet
      traincheck trace export traces/good --format perfetto -o good.pftrace
      duckdb -c "select api, count(*) from 'good-parquet/calls.parquet' group by 1 order by 2 desc"
      traincheck trace export traces/m1 --format hdf5 -o m1
    """  # noqa: D301  # click reads the escape
    from traincheck.metrics.export import METRIC_VALUES, export_metrics, has_metrics
    from traincheck.store.columnar import export_parquet, file_name
    from traincheck.store.reader import TraceReader

    if form == "perfetto":
        from traincheck.perfetto.export import export_perfetto

        reader = TraceReader(directory)
        with progress(reader):
            timeline = export_perfetto(reader, Path(output))
        counts = f"{timeline.slices:,} slices, {timeline.numbers:,} numbers"
        click.echo(f"{timeline.path}: {counts}, {timeline.size / 1e6:,.1f} MB", err=True)
        if reader.skipped:
            click.echo(f"skipped {reader.skipped} unreadable lines", err=True)
        return
    if Path(output).is_file():
        raise OutputError(f"output path {output!r} is a file", fix="name a folder with -o")
    reader = TraceReader(directory)
    if form != "parquet":
        with progress(reader):
            written = export_metrics(reader, output, form)
        click.echo(f"{written.path}: {written.rows:,} numbers", err=True)
        return
    with progress(reader):
        rows = export_parquet(reader, output)
    if has_metrics(rows):
        written = export_metrics(reader, output, METRIC_VALUES)
        click.echo(f"{written.path}: {written.rows:,} numbers", err=True)
    for kind, count in sorted(rows.items()):
        click.echo(f"{Path(output) / file_name(kind)}: {count:,} rows", err=True)
    if reader.skipped:
        click.echo(f"skipped {reader.skipped} unreadable lines", err=True)


@trace.command()
@click.argument("directory", metavar="DIR", shell_complete=_completion.folders)
@shared(
    "output_folder",
    help="Write step=N/rankR.yaml below this folder. [default: all reports to stdout]",
)
@form("yaml", "json", help="Format of the reports.")
@click.option("--steps", metavar="A:B", help="Steps from A to B, B excluded; or one step.")
@click.option("--rank", type=click.IntRange(min=0), help="Only reports of this rank.")
@click.option(
    "--statistics",
    metavar="NAMES",
    help="Statistics of each tensor, separated by commas: shape, dtype, infs, nans, zeros, med, "
    "mean, amean, std, var, uvar, skew, kurt, mode, min, max, hash. [default: all]",
)
@click.option(
    "--groups",
    metavar="NAMES",
    help="What to report, separated by commas: params, grads, buffers, rngs, optimizers, batch. "
    "[default: all]",
)
def checksums(directory: str, *, output: str | None, form: str, **choice: Any) -> None:
    """Report checksums and statistics of everything that a training step depends on.

    There is one report for each step and rank, in the layout of fkat: parameters, gradients,
    buffers, optimizers, random generators and the batch, before the optimizer stepped. Two runs
    that train alike have equal reports, so diff shows the first step and name that differ.

    Record the run with --checksums, which takes them in the steps that you choose.

    \b
    Examples:
      traincheck-collect --checksums first=3,every=100 -o traces/a -p train.py
      traincheck trace checksums traces/a -o a
      traincheck trace checksums traces/a --steps 0:2 --rank 0 --statistics hash,mean
      diff -r a b | head
    """  # noqa: D301  # click reads the escape
    from traincheck.store.reader import TraceReader

    from . import _checksum_files

    reader = TraceReader(directory)
    with progress(reader):
        count = _checksum_files.write(reader, output, form, **choice)
    if output is not None:
        click.echo(f"{output}: {count:,} reports", err=True)
    if reader.skipped:
        click.echo(f"skipped {reader.skipped} unreadable lines", err=True)


def _chosen(
    reader: TraceReader,
    *,
    kind: tuple[str, ...],
    api: str | None,
    variable: str | None,
    step: int | None,
    rank: int | None,
) -> Iterator[Event]:
    """The events that every given option lets through; --api and --variable choose a kind each."""
    kinds = set(kind or KINDS)
    if api is not None or variable is not None:
        kinds &= {kind for kind, name in (("call", api), ("state", variable)) if name is not None}
    for event in reader.events():
        if (
            event.kind in kinds
            and (step is None or event.step == step)
            and (rank is None or event.rank == rank)
            and (event.kind != "call" or _matches(api, event.api, event.family))
            and (event.kind != "state" or _matches(variable, event.name))
        ):
            yield event


def _matches(pattern: str | None, *names: str | None) -> bool:
    return pattern is None or any(fnmatch.fnmatchcase(name, pattern) for name in names if name)
