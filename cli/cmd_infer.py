"""traincheck-infer: learn what reference runs always do.

Reads the command line; traincheck.infer does the work.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

import traincheck
from traincheck.errors import OutputError, TraceFormatError, UsageError

if TYPE_CHECKING:
    from traincheck.infer.engine import Dropped, InferResult, Limits
    from traincheck.infer.tasks import Run
    from traincheck.schema.protocols import Relation

_SHOWN = 3  # sentences of each relation in the summary
_SHOWN_DROPPED = 40


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "-t",
    "--trace",
    "traces",
    metavar="DIR",
    multiple=True,
    required=True,
    help="A reference run, or a folder of runs. Repeatable.",
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    default="invariant.json",
    show_default=True,
    help="Write the invariants there.",
)
@click.option(
    "--relation", "names", metavar="NAME", multiple=True, help="Learn only this one. Repeatable."
)
@click.option(
    "--min-examples",
    type=click.IntRange(min=1),
    metavar="N",
    help="Examples an invariant needs. [default: as many as --confidence takes]",
)
@click.option(
    "--confidence",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.99,
    show_default=True,
    metavar="P",
    help="How unlikely chance alone must be.",
)
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Processes that share the runs.",
)
@click.option(
    "--why-not",
    metavar="TEXT",
    help="Tell why statements that hold TEXT were not kept; '' for all.",
)
def infer(
    traces: Sequence[str],
    output: str,
    names: Sequence[str],
    min_examples: int | None,
    confidence: float,
    jobs: int,
    why_not: str | None,
) -> None:
    """Learn from good runs what they always do, and write it to a file of invariants.

    Give several runs to keep only what holds in all of them. What was dropped, and why, is written
    beside the invariants, to <output>.dropped.json.

    \b
    Examples:
      traincheck-infer -t traces/good
      traincheck-infer -t traces/seed1 -t traces/seed2 -o invariant.json
      traincheck-infer -t traces/good --why-not buffer
    """  # noqa: D301  # click reads the escape
    from traincheck.infer.engine import Limits
    from traincheck.infer.engine import infer as learn

    _refuse_output(output)
    relations = _relations(names)
    runs = _runs(traces)
    limits = Limits(confidence=confidence, examples=min_examples)
    with _progress() as on_progress:
        result = learn(runs, relations=relations, limits=limits, jobs=jobs, on_progress=on_progress)
    _refuse_nothing(result, traces)
    _write(result, Path(output), limits)
    _summarize(result, output)
    if why_not is not None:
        _explain(result.dropped, why_not)


def _relations(names: Sequence[str]) -> dict[str, Relation] | None:
    from traincheck.relations._table import RELATIONS

    for name in names:
        if name not in RELATIONS:
            raise UsageError(
                f"there is no relation {name!r}", fix=f"choose among {', '.join(RELATIONS)}"
            )
    return {name: RELATIONS[name] for name in names} if names else None


def _runs(traces: Sequence[str]) -> list[Run]:
    from traincheck.infer.tasks import Run
    from traincheck.store.reader import TraceReader
    from traincheck.store.runs import find_runs

    found = {run.resolve(): run for trace in traces for run in find_runs(trace)}
    return [Run(name=path.name, source=TraceReader(run)) for path, run in sorted(found.items())]


def _refuse_output(output: str) -> None:
    """Before a long reading rather than after it."""
    path = Path(output)
    if path.is_dir():
        reason = "it is a directory"
    elif not path.parent.is_dir():
        reason = f"{path.parent} is not a directory"
    else:
        return
    raise OutputError(
        f"{output}: cannot be written: {reason}", fix="choose a file in a writable directory"
    )


def _refuse_nothing(result: InferResult, traces: Sequence[str]) -> None:
    where = ", ".join(traces)
    if not result.events:
        raise TraceFormatError(f"{where} holds no events", fix="record the run again")
    if not result.steps:
        raise TraceFormatError(
            f"{where} holds no complete training step",
            fix="record a run that takes a few optimizer steps, all of its program traced; "
            "see what it holds with traincheck trace show",
        )


def _write(result: InferResult, output: Path, limits: Limits) -> None:
    from traincheck.infer.engine import dropped_json
    from traincheck.schema.invariant_file import write_invariants, write_json

    created_with = {
        "traincheck": traincheck.__version__,
        "confidence": limits.confidence,
        "min_examples": limits.min_examples,
    }
    write_invariants(output, result.invariants, created_with, result.runs)
    if output.exists() and not output.is_file():
        return  # a pipe or a device has no file beside it
    write_json(
        output.with_name(f"{output.name}.dropped.json"),
        {"schema_version": 1, "dropped": dropped_json(result.dropped)},
    )


def _summarize(result: InferResult, output: str) -> None:
    runs = "1 run" if len(result.runs) == 1 else f"{len(result.runs)} runs"
    _say(f"{len(result.invariants)} invariants from {runs}, {result.steps} steps, in {output}")
    if result.skipped:
        _say(f"  note: {result.skipped} unreadable lines were skipped")
    counts = Counter(invariant.hypothesis.relation for invariant in result.invariants)
    for name, count in sorted(counts.items()):
        _say(f"  {name}: {count}")
        kept = [i for i in result.invariants if i.hypothesis.relation == name]
        for invariant in sorted(kept, key=lambda i: (-i.support.positive, i.text))[:_SHOWN]:
            _say(f"    {invariant.text}")
    if not result.invariants:
        _say("  fix: record more steps, or lower --min-examples and --confidence")
    reasons = Counter(one.reason for one in result.dropped)
    shown = "; ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
    _say(f"  dropped: {shown or 'none'}")


def _explain(dropped: Sequence[Dropped], text: str) -> None:
    found = [one for one in dropped if text.lower() in one.text.lower()]
    _say(f"\n{len(found)} dropped statements hold {text!r}:")
    for one in found[:_SHOWN_DROPPED]:
        detail = f": {one.detail}" if one.detail else ""
        examples = f"{one.positive} examples, {one.negative} counterexamples"
        _say(f"  {one.text}\n    {one.reason}{detail} ({examples})")
    if len(found) > _SHOWN_DROPPED:
        _say(f"  and {len(found) - _SHOWN_DROPPED} more in the file of dropped statements")


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[int, int], None] | None]:
    """A bar on stderr, when somebody may look at it."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("learning"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("learning", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _say(text: str) -> None:
    click.echo(text, err=True)
