"""traincheck-infer: learn invariants from reference runs.

Reads the command line; traincheck.infer does the work.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from traincheck.errors import TraceFormatError, UsageError
from traincheck.schema.words import counted, joined

from . import _completion
from ._invariant_text import explain_dropped, print_message, show_why
from ._options import shared
from ._outputs import require_writable

if TYPE_CHECKING:
    from traincheck.infer.engine import InferResult, Run
    from traincheck.infer.statistics import RunStatistics
    from traincheck.schema.protocols import Relation

_SHOWN = 3  # sentences of each relation in the summary
DEFAULT_OUTPUT = "invariant.json"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@shared("traces")
@shared(
    "output",
    help=f"Write the invariants to this file. [default: {DEFAULT_OUTPUT}, or the file of --update]",
)
@click.option(
    "--update",
    metavar="FILE",
    shell_complete=_completion.files,
    help="Learn from the runs of this file too, without reading their traces again.",
)
@shared("force")
@click.option(
    "--relation",
    "names",
    metavar="NAME",
    shell_complete=_completion.relations,
    multiple=True,
    help="Learn only this relation. Repeatable.",
)
@click.option(
    "--min-examples",
    type=click.IntRange(min=1),
    metavar="N",
    help="Examples that an invariant needs. [default: as many as --confidence requires]",
)
@click.option(
    "--confidence",
    type=click.FloatRange(0, 1, max_open=True),
    metavar="P",
    help="Required confidence that an invariant is not due to chance. [default: 0.99, or that of "
    "the file of --update]",
)
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Number of processes; each takes a share of the runs.",
)
@click.option(
    "--why-not",
    metavar="TEXT",
    help="Explain why statements that contain TEXT were dropped; '' for all. Without -t, explain "
    "an existing file of invariants.",
)
def infer(**options: Any) -> None:
    """Learn invariants from good runs, and write them to a file.

    With several runs, only statements that hold in all of them are kept. Two files are written
    beside the invariants: <output>.dropped.json lists the dropped statements with the reasons, and
    <output>.stats holds the statistics of the runs, so that runs can be added later.

    \b
    Examples:
      traincheck-infer -t traces/good
      traincheck-infer -t traces/seed1 -t traces/seed2 -o invariant.json
      traincheck-infer --update invariant.json -t traces/more
      traincheck-infer --why-not buffer
    """  # noqa: D301  # click reads the escape
    from traincheck.infer.engine import infer as learn
    from traincheck.infer.files import known_runs, limits_of, save

    update, why_not = options["update"], options["why_not"]
    output = options["output"] or update or DEFAULT_OUTPUT
    if not options["traces"]:
        if why_not is None:
            raise UsageError("no run to learn from", fix="name a run: -t DIR")
        explain_dropped(output, why_not)
        return
    is_same = update is not None and os.path.realpath(output) == os.path.realpath(update)
    require_writable(output, replaces=options["force"] or is_same)
    before = [] if update is None else known_runs(update)
    limits = limits_of(
        [] if update is None else [update], options["confidence"], options["min_examples"]
    )
    relations = _relations(options["names"], before)
    runs = _runs(options["traces"])
    with _progress() as on_progress:
        result = learn(
            runs,
            relations=relations,
            limits=limits,
            jobs=options["jobs"],
            on_progress=on_progress,
            known=before,
        )
    where = ", ".join(options["traces"])
    if not result.events:
        raise TraceFormatError(f"{where} has no events", fix="record the run again")
    if not result.steps:
        raise TraceFormatError(
            f"{where} has no complete training step",
            fix="record a run with a few optimizer steps, and show its contents with "
            "traincheck trace show",
        )
    save(result, output, limits)
    summarize(result, output)
    _print_notes(runs)
    if why_not is not None:
        show_why(why_not, result.invariants, result.dropped)


def _relations(names: Sequence[str], before: Sequence[RunStatistics]) -> dict[str, Relation] | None:
    """The relations to learn: those of the option that all earlier runs have, too."""
    from traincheck.relations.registry import RELATIONS

    for name in names:
        if name not in RELATIONS:
            raise UsageError(
                f"there is no relation {name!r}", fix=f"choose one of {', '.join(RELATIONS)}"
            )
    known = set(RELATIONS).intersection(*(run.relations for run in before))
    chosen = [name for name in names or RELATIONS if name in known]
    return {name: RELATIONS[name] for name in chosen} if names or before else None


def _runs(traces: Sequence[str]) -> list[Run]:
    from traincheck.infer.engine import Run
    from traincheck.schema.layout import EVENT_GLOB
    from traincheck.store.manifest import find_runs
    from traincheck.store.reader import TraceReader

    found = {run.resolve(): run for trace in traces for run in find_runs(trace)}
    empty = {path for path in found if not any(path.glob(EVENT_GLOB))}
    if empty and len(empty) < len(found):
        names = ", ".join(str(found.pop(path)) for path in sorted(empty))
        print_message(f"note: skipped {names}: nothing was recorded there")
    return [Run(name=path.name, source=TraceReader(run)) for path, run in sorted(found.items())]


def _print_notes(runs: Sequence[Run]) -> None:
    """Print notes of the runs that explain missing invariants; a note of several runs once."""
    from traincheck.api import run_notes
    from traincheck.infer.coverage import view_notes
    from traincheck.store.reader import TraceReader

    names: dict[str, list[str]] = {}
    for run in runs:
        if isinstance(run.source, TraceReader):
            manifest = run.source.manifest
            for note in [
                *run_notes(run.source),
                *view_notes(manifest.settings if manifest else {}),
            ]:
                names.setdefault(note, []).append(run.name)
    for note, told in names.items():
        print_message(f"  note: {joined(told)}: {note}")


def summarize(result: InferResult, output: str) -> None:
    """A few sentences of each relation, and how many hypotheses were dropped for what reason."""
    found, steps = counted(len(result.invariants), "invariant"), counted(result.steps, "step")
    print_message(f"{found} from {counted(len(result.runs), 'run')}, {steps}, in {output}")
    if result.skipped:
        print_message(f"  note: {counted(result.skipped, 'unreadable line')} skipped")
    counts = Counter(invariant.hypothesis.relation for invariant in result.invariants)
    for name, count in sorted(counts.items()):
        print_message(f"  {name}: {count}")
        kept = [i for i in result.invariants if i.hypothesis.relation == name]
        for invariant in sorted(kept, key=lambda i: (-i.support.positive, i.text))[:_SHOWN]:
            print_message(f"    {invariant.text}")
    if not result.invariants:
        print_message("  fix: record more steps, or lower --min-examples and --confidence")
    reasons = Counter(one.reason for one in result.dropped)
    shown = "; ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
    print_message(f"  dropped: {shown or 'none'}")


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar on stderr, if it is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("learning"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("learning", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
