"""traincheck invariants: list, show, compare, merge and validate invariants.

Reads the command line; traincheck.infer does the work.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from traincheck.errors import UsageError, nearest
from traincheck.schema.words import counted, printable

from . import _completion
from ._invariant_text import (
    cells,
    details,
    print_json,
    print_line,
    print_message,
    severity,
    summary_json,
)
from ._options import form, shared
from ._outputs import require_writable

if TYPE_CHECKING:
    from pathlib import Path

    from traincheck.schema.claims import Invariant
    from traincheck.schema.findings import Report

_CONTEXT = {"help_option_names": ["-h", "--help"]}
_DEFAULT = "invariant.json"
_COLOURS = {"error": "red", "warning": "yellow", "info": "blue"}
_DIFFERENT = _VIOLATED = 1


@click.group(context_settings=_CONTEXT)
def invariants() -> None:
    """List, show, compare, merge and validate invariants.

    \b
    Examples:
      traincheck invariants list invariant.json --relation order
      traincheck invariants show order-0a1b2c3d4e
      traincheck invariants diff old.json new.json
      traincheck invariants merge a.json b.json -o c.json
      traincheck invariants validate invariant.json -t traces/good
    """  # noqa: D301  # click reads the escape


@invariants.command("list")
@click.argument("file", metavar="[FILE]", shell_complete=_completion.files, default=_DEFAULT)
@click.option(
    "--relation",
    metavar="NAME",
    shell_complete=_completion.relations,
    multiple=True,
    help="List only invariants of this relation. Repeatable.",
)
@click.option(
    "--text", metavar="TEXT", default="", help="List only invariants whose sentence contains TEXT."
)
@form("text", "json")
def list_(file: str, relation: Sequence[str], text: str, form: str) -> None:
    """List invariants: id, relation, severity, examples, confidence, sentence.

    \b
    Examples:
      traincheck invariants list
      traincheck invariants list good.json --text zero_grad
      traincheck invariants list good.json --relation contains --format json
    """  # noqa: D301  # click reads the escape
    found = [
        one
        for one in _read(file)
        if (not relation or one.hypothesis.relation in relation)
        and text.lower() in one.text.lower()
    ]
    if form == "json":
        print_json([summary_json(one) for one in found])
    elif sys.stdout.isatty():
        _show_table(found)
    else:
        for one in found:
            print_line("  ".join(cells(one)))


@invariants.command()
@click.argument("id_", metavar="ID")
@click.argument("where", metavar="[FILE]", shell_complete=_completion.files, required=False)
@click.option(
    "-i",
    "--invariants",
    "file",
    metavar="FILE",
    shell_complete=_completion.files,
    default=_DEFAULT,
    show_default=True,
    help="File that holds the invariant.",
)
@form("text", "json")
def show(id_: str, where: str | None, file: str, form: str) -> None:
    """Show one invariant in detail. ID can be a prefix.

    \b
    Examples:
      traincheck invariants show order-0a1b2c3d4e
      traincheck invariants show contains-77 good.json --format json
    """  # noqa: D301  # click reads the escape
    from traincheck.schema.invariant_file import invariant_json

    file = where or file
    one = _find(_read(file), id_, file)
    if form == "json":
        value = {**invariant_json(one), "severity": severity(one)}
        print_json(value)
        return
    print_line(one.text)
    for name, fact in details(one, file):
        print_line(f"  {name + ':':<13} {fact}")


@invariants.command()
@click.argument("before", metavar="A", shell_complete=_completion.files)
@click.argument("after", metavar="B", shell_complete=_completion.files)
@form("text", "json")
def diff(before: str, after: str, form: str) -> int:
    """Compare two files: invariants added, removed, or under another condition in B.

    \b
    Examples:
      traincheck invariants diff old.json new.json
      traincheck invariants diff old.json new.json --format json

    \b
    Exit status: 0 equal; 1 different; 2 bad input or usage.
    """  # noqa: D301  # click reads the escape
    from traincheck.infer.select import compare

    found = compare(_read(before), _read(after))
    if form == "json":
        value = {
            "added": [summary_json(one) for one in found.added],
            "removed": [summary_json(one) for one in found.removed],
            "changed": [
                {
                    "before": [summary_json(one) for one in a],
                    "after": [summary_json(one) for one in b],
                }
                for a, b in found.changed
            ],
        }
        print_json(value)
        return 0 if found.is_empty else _DIFFERENT
    for sign, group in (("-", found.removed), ("+", found.added)):
        for one in group:
            print_line(f"{sign} {one.id}  {one.text}")
    for old, new in found.changed:
        for sign, group in (("~ before", old), ("~ after ", new)):
            for one in group:
                print_line(f"{sign} {one.id}  {one.text}")
    counts = (len(found.added), len(found.removed), len(found.changed))
    print_message("{} added, {} removed, {} changed".format(*counts))
    return 0 if found.is_empty else _DIFFERENT


@invariants.command()
@click.argument(
    "files", metavar="FILE...", shell_complete=_completion.files, nargs=-1, required=True
)
@shared("output", required=True, help="Write the invariants to this file.")
@shared("force")
def merge(files: Sequence[str], output: str, force: bool) -> None:
    """Learn from the runs of several files at once, using the statistics beside the files.

    The result equals that of traincheck-infer with all these runs. The strictest limits apply.

    \b
    Examples:
      traincheck invariants merge mnist.json gpt.json -o both.json
    """  # noqa: D301  # click reads the escape
    from traincheck.infer.engine import learn_from
    from traincheck.infer.files import known_runs, limits_of, save
    from traincheck.relations.registry import RELATIONS

    require_writable(output, replaces=force)
    limits = limits_of(files)
    statistics = [run for file in files for run in known_runs(file)]
    result = learn_from(statistics, relations=RELATIONS, limits=limits)
    save(result, output, limits)
    found = counted(len(result.invariants), "invariant")
    print_message(f"{found} from {counted(len(result.runs), 'run')}, in {output}")


@invariants.command()
@click.argument("file", metavar="FILE", shell_complete=_completion.files)
@shared("traces", required=True)
@form("text", "json")
def validate(file: str, traces: Sequence[str], form: str) -> int:
    """Replay good runs and report which invariants hold, are violated, or are not triggered.

    Each run is replayed three times: in full, with only the events that the invariants need, and
    with every third step. The format of the file is checked too.

    \b
    Examples:
      traincheck invariants validate invariant.json -t traces/good
      traincheck invariants validate invariant.json -t traces --format json

    \b
    Exit status: 0 no invariant is violated; 1 some are; 2 bad input or usage.
    """  # noqa: D301  # click reads the escape
    from traincheck.infer.replay_views import replay
    from traincheck.relations.registry import RELATIONS
    from traincheck.store.manifest import find_runs
    from traincheck.store.reader import TraceReader

    known = _read(file)
    found: dict[str, dict[str, Any]] = {}
    for run in (run for trace in traces for run in find_runs(trace)):
        found[str(run)] = _by_verdict(known, replay(TraceReader(run), RELATIONS, known))
        if form == "text":
            _print_run(run, found[str(run)])
    if form == "json":
        print_json(found)
    return _VIOLATED if any(one["violated"] for one in found.values()) else 0


def _by_verdict(known: Sequence[Invariant], reports: dict[str, Report]) -> dict[str, Any]:
    """Ids by verdict, the worst over the views, as JSON; with evidence if violated."""
    order = ("violated", "not_observable", "held", "not_triggered")
    found: dict[str, Any] = {verdict: [] for verdict in order}
    for one in known:
        verdicts = {view: str(report.verdicts[one.id].value) for view, report in reports.items()}
        worst = min(verdicts.values(), key=order.index)
        entry: Any = one.id
        if worst == "violated":
            views = [view for view, verdict in verdicts.items() if verdict == worst]
            entry = {"id": one.id, "text": one.text, "views": views}
            findings = reports[views[0]].findings
            finding = next((f for f in findings if f.check == one.id), None)
            if finding is not None:
                entry |= {k: getattr(finding, k) for k in ("step", "expected", "observed")}
        found[worst].append(entry)
    return found


def _print_run(run: Path, found: dict[str, Any]) -> None:
    counts = [f"{len(ids)} {verdict.replace('_', ' ')}" for verdict, ids in found.items()]
    print_line(f"{run}: {', '.join(counts)}")
    for one in found["violated"]:
        where = f"in {', '.join(one['views'])}"
        print_line(f"  {one['id']}  {one['text']}")
        print_line(f"    broken {where}")
        if one.get("observed"):
            print_line(f"    step {one['step']}: {one['observed']}; expected: {one['expected']}")


def _read(file: str) -> list[Invariant]:
    from traincheck.schema.invariant_file import read_invariants

    return read_invariants(file)


def _find(known: Sequence[Invariant], id_: str, file: str) -> Invariant:
    found = [one for one in known if one.id.startswith(id_)]
    exact = [one for one in found if one.id == id_]
    if len(exact or found) == 1:
        return (exact or found)[0]
    if found:
        shown = ", ".join(one.id for one in found[:5])
        raise UsageError(
            f"{len(found)} ids in {file} begin with {id_!r}", fix=f"choose one: {shown}"
        )
    like = nearest(id_, [one.id for one in known]) if known else "none"
    raise UsageError(
        f"{file} has no invariant {id_!r}",
        fix=f"did you mean {like}? List all with: traincheck invariants list {file}",
    )


def _show_table(found: Sequence[Invariant]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for _ in range(5):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for one in found:
        row: list[Any] = [Text(printable(cell.strip())) for cell in cells(one)]
        row[2].stylize(_COLOURS.get(row[2].plain, ""))
        table.add_row(*row)
    Console(file=sys.stdout, highlight=False).print(table)
    counts = Counter(one.hypothesis.relation for one in found)
    shown = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    print_message(f"{counted(len(found), 'invariant')}: {shown}" if found else "no invariants")
