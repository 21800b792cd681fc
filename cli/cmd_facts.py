"""traincheck facts: what a run really did, the most unusual first."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from . import _completion
from ._outputs import require_writable

if TYPE_CHECKING:
    from traincheck.schema.facts import Fact

_MOST_RUNS = 2


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("directories", metavar="RUN...", nargs=-1, shell_complete=_completion.folders)
@click.option(
    "--population",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Compare with the programs that are counted in FILE, too.",
)
@click.option(
    "--write-population",
    metavar="FILE",
    help="Count the facts of all RUNs, which are of healthy programs, and write them to FILE.",
)
@click.option(
    "--annotate", is_flag=True, help="Print the source of the run with facts beside its lines."
)
@click.option(
    "--brief", is_flag=True, help="Print one text for an assistant: facts, source, what is missing."
)
@click.option("--all", "everything", is_flag=True, help="Show all facts, none folded.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "markdown"]),
    default="text",
    show_default=True,
    help="Format of the output.",
)
def facts(
    directories: tuple[str, ...],
    *,
    population: Path | None,
    write_population: str | None,
    annotate: bool,
    brief: bool,
    everything: bool,
    form: str,
) -> None:
    """Show the facts of a recorded run: what the training did, the most unusual first.

    A fact is what was seen, with the number of healthy programs that show the same. It is a place
    to look, never a verdict: healthy programs have unusual facts, too.

    With two runs, shows the facts that differ in class. Neither seeds nor numbers need to be equal.

    With --write-population, a RUN may be a folder of runs. Each program has one vote, however many
    runs it has. A run that did not end with status 0 is left out.

    \b
    Examples:
      traincheck facts traces/r1
      traincheck facts traces/r1 --all
      traincheck facts traces/r1 --annotate
      traincheck facts traces/r1 --brief > facts.md
      traincheck facts traces/good traces/bad
      traincheck facts traces/ --write-population mine.json
      traincheck facts traces/r1 --population mine.json
      traincheck facts traces/r1 --format json | jq '.facts[:3]'

    \b
    Exit status:
      0  the facts were shown, or counted
      2  bad input or usage
      3  a bug of traincheck
    """  # noqa: D301  # click reads the escape
    from traincheck import api
    from traincheck.errors import UsageError
    from traincheck.facts.compare import contrasts
    from traincheck.report import facts as shown

    from .cmd_check import one_run

    if write_population is not None:
        _count(directories, write_population)
        return
    if not 1 <= len(directories) <= _MOST_RUNS:
        raise UsageError(
            f"traincheck facts takes one run or two, not {len(directories)}",
            fix="traincheck facts RUN, or traincheck facts A B",
        )
    if (annotate or brief) and (len(directories) == _MOST_RUNS or form == "json"):
        option = "--brief" if brief else "--annotate"
        raise UsageError(
            f"{option} prints text about one run",
            fix=f"traincheck facts {option} RUN",
        )
    runs = [one_run(directory) for directory in directories]
    cards = [api.facts(run, population) for run in runs]
    card = cards[0]
    if len(cards) == _MOST_RUNS:
        found = contrasts(card, cards[1])
        if form == "json":
            shown.write_json(shown.contrasts_json(found, card, cards[1]), sys.stdout)
        else:
            shown.write_contrasts_text(found, card, cards[1], sys.stdout, everything=everything)
        return
    if brief:
        shown.write_facts_brief(card, api.annotated_source(runs[0], card), sys.stdout)
    elif annotate:
        shown.write_annotated_text(api.annotated_source(runs[0], card), sys.stdout)
    elif form == "json":
        shown.write_json(shown.facts_json(card), sys.stdout)
    elif form == "markdown":
        shown.write_facts_markdown(card, sys.stdout)
    else:
        shown.write_facts_text(card, sys.stdout, everything=everything)


def _count(directories: Sequence[str], output: str) -> None:
    """Write the counts of all runs to a file, with progress on stderr.

    Raises:
        UsageError: there is no run, or none of a program that ended well.
        TraceFormatError: a run cannot be read.
        OutputError: the file cannot be written.
    """
    from traincheck.api import program_of, root_of
    from traincheck.errors import UsageError
    from traincheck.facts.book import facts_of
    from traincheck.facts.population import encoded, population_of
    from traincheck.schema.files import write_bytes
    from traincheck.store.manifest import find_runs
    from traincheck.store.reader import TraceReader

    require_writable(output)
    runs = [run for directory in directories for run in find_runs(directory)]
    programs: dict[str, list[Fact]] = defaultdict(list)
    for number, run in enumerate(runs, 1):
        reader = TraceReader(run)
        status = reader.manifest.exit_status if reader.manifest else None
        left_out = f", left out: it ended with status {status}" if status else ""
        click.echo(f"traincheck: {number:,} of {len(runs):,}: {run}{left_out}", err=True)
        if not left_out:
            program = program_of(reader)
            name = str(Path(root_of(reader), program)) if program else str(run)
            programs[name] += facts_of(reader.events())
    if not programs:
        raise UsageError(
            "there is no run of a program that ended with status 0",
            fix="record one: traincheck run --keep train.py",
        )
    write_bytes(output, encoded(population_of(programs.values())))
    click.echo(f"traincheck: {len(programs):,} programs counted in {output}", err=True)
