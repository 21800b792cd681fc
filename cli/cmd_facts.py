"""traincheck facts: what a run really did, the most unusual first."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from . import _completion

_MOST_RUNS = 2


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("directories", metavar="RUN [OTHER]", nargs=-1, shell_complete=_completion.folders)
@click.option(
    "--population",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Compare with the programs that are counted in FILE, too.",
)
@click.option(
    "--annotate", is_flag=True, help="Print the source of the run with facts beside its lines."
)
@click.option("--all", "everything", is_flag=True, help="Show all usual facts, none folded.")
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
    annotate: bool,
    everything: bool,
    form: str,
) -> None:
    """Show the facts of a recorded run: what the training did, the most unusual first.

    A fact is what was seen, with the number of healthy programs that show the same. It is a place
    to look, never a verdict: healthy programs have unusual facts, too.

    With two runs, shows the facts that differ in class. Neither seeds nor numbers need to be equal.

    \b
    Examples:
      traincheck facts traces/r1
      traincheck facts traces/r1 --all
      traincheck facts traces/r1 --annotate
      traincheck facts traces/good traces/bad
      traincheck facts traces/r1 --format json | jq '.facts[:3]'

    \b
    Exit status:
      0  the facts were shown
      2  bad input or usage
      3  a bug of traincheck
    """  # noqa: D301  # click reads the escape
    from traincheck import api
    from traincheck.errors import UsageError
    from traincheck.facts.compare import contrasts
    from traincheck.report import facts as shown

    from .cmd_check import one_run

    if not 1 <= len(directories) <= _MOST_RUNS:
        raise UsageError(
            f"traincheck facts takes one run or two, not {len(directories)}",
            fix="traincheck facts RUN, or traincheck facts A B",
        )
    runs = [one_run(directory) for directory in directories]
    cards = [api.facts(run, population) for run in runs]
    card = cards[0]
    if len(cards) == _MOST_RUNS:
        found = contrasts(card, cards[1])
        if form == "json":
            shown.write_json(shown.contrasts_json(found, card, cards[1]), sys.stdout)
        else:
            shown.write_contrasts_text(found, card, cards[1], sys.stdout)
        return
    if annotate:
        shown.write_annotated_text(api.annotated_source(runs[0], card), sys.stdout)
    elif form == "json":
        shown.write_json(shown.facts_json(card), sys.stdout)
    elif form == "markdown":
        shown.write_facts_markdown(card, sys.stdout)
    else:
        shown.write_facts_text(card, sys.stdout, everything=everything)
