"""traincheck rules: list the built-in rules, explain one. The text is the rule's own docstring."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

from traincheck.errors import UsageError, suggested

from . import _completion
from ._options import form

if TYPE_CHECKING:
    from traincheck.rules.docs import RuleDocs
    from traincheck.schema.protocols import Rule

_COLOURS = {"error": "red", "warning": "yellow", "info": "blue"}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("stray", nargs=-1, metavar="")
@click.option(
    "--explain",
    metavar="CODE",
    shell_complete=_completion.codes,
    help="Show the documentation of one rule, by code or name.",
)
@form("text", "json")
def rules(stray: tuple[str, ...], explain: str | None, form: str) -> None:
    """List the built-in rules, which need no reference run.

    On a terminal the rules are grouped by theme; elsewhere each is one line.

    \b
    Examples:
      traincheck rules
      traincheck rules --explain TC101
      traincheck rules --format json
    """  # noqa: D301  # click reads the escape
    from traincheck.rules.registry import all_rules

    if stray:
        code = " ".join(stray).removeprefix("explain").strip() or "CODE"
        fix = f"traincheck rules --explain {code}"
        raise UsageError(f"unexpected argument {stray[0]!r}", fix=fix)
    known = all_rules()
    chosen = known if explain is None else [_find(known, explain)]
    if form == "json":
        found = [_as_json(rule) for rule in chosen]
        click.echo(json.dumps(found if explain is None else found[0], indent=2, ensure_ascii=False))
    elif explain is not None:
        _explain(chosen[0])
    elif sys.stdout.isatty():
        _show_groups(known)
    else:
        for docs in _docs(known):
            click.echo(f"{docs.code}  {docs.severity:<7}  {_summary(docs)}")


def _summary(docs: RuleDocs) -> str:
    return f"{docs.name}: {docs.summary}" if docs.name else docs.summary


def _docs(known: Sequence[Rule]) -> list[RuleDocs]:
    from traincheck.rules.docs import docs_of

    return [docs_of(rule) for rule in known]


def _show_groups(known: Sequence[Rule]) -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    console = Console(file=sys.stdout, highlight=False)
    for theme, group in groupby(_docs(known), key=lambda docs: docs.theme):
        console.print(Text(theme, style="bold"))
        table = Table.grid(padding=(0, 2))
        for _ in range(2):
            table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for docs in group:
            severity = Text(f"{docs.severity:<7}", style=_COLOURS[docs.severity])
            table.add_row(Text(docs.code, style="bold"), severity, Text(_summary(docs)))
        console.print(Padding(table, (0, 0, 1, 2)))
    console.print(Text("Show one in detail with: traincheck rules --explain CODE", style="dim"))


def _explain(rule: Rule) -> None:
    """The docstring; on a terminal with its headings in bold."""
    from traincheck.rules.docs import docs_of, options_text

    docs = docs_of(rule)
    text = docs.text
    if options := options_text(rule):
        indented = "\n".join(f"    {line}" for line in options.splitlines())
        text = f"{text.rstrip()}\n\nDefaults, under [rules.{docs.code}]:\n{indented}"
    if not sys.stdout.isatty():
        click.echo(text)
        return
    title, *body = text.splitlines()
    click.secho(title, bold=True)
    for line in body:
        is_heading = line.endswith(":") and not line.startswith(" ")
        click.secho(line, bold=is_heading or None)


def _as_json(rule: Rule) -> dict[str, Any]:
    from traincheck.rules.docs import docs_of
    from traincheck.rules.options import options_of

    docs = docs_of(rule)
    return {
        "code": docs.code,
        "name": docs.name,
        "aliases": list(docs.aliases),
        "severity": docs.severity,
        "theme": docs.theme,
        "summary": docs.summary,
        "options": {name: option.default for name, option in options_of(rule).items()},
        "sections": dict(docs.sections),
    }


def _find(known: Sequence[Rule], code: str) -> Rule:
    by_code = {rule.info.code: rule for rule in known}
    by_name = {
        name: docs.code for docs in _docs(known) for name in (docs.name, *docs.aliases) if name
    }
    rule = by_code.get(by_name.get(code.lower(), code.upper()))
    if rule is not None:
        return rule
    begun = [other for other in by_code if other.startswith(code.upper())]
    if begun:
        raise UsageError(
            f"{len(begun)} rules begin with {code}", fix=f"choose one of {', '.join(begun)}"
        )
    likely = suggested(code.upper(), by_code) or suggested(code.lower(), by_name)
    raise UsageError(
        f"no rule has the code {code!r}", fix=f"{likely}List all with: traincheck rules"
    )
