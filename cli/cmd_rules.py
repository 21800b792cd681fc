"""traincheck rules: list the built-in rules, explain one. The text is the rule's own docstring."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from traincheck.errors import UsageError

if TYPE_CHECKING:
    from traincheck.schema.protocols import Rule


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--explain", metavar="CODE", help="What one rule checks, why, and how to fix it.")
def rules(explain: str | None) -> None:
    """List the built-in rules. They need no reference run.

    \b
    Examples:
      traincheck rules
      traincheck rules --explain TC101
    """  # noqa: D301  # click reads the escape
    from traincheck.rules._table import all_rules

    known = all_rules()
    click.echo(_listing(known) if explain is None else explanation(_find(known, explain)))


def explanation(rule: Rule) -> str:
    """The docstring of a rule as it is shown."""
    return inspect.cleandoc(type(rule).__doc__ or rule.info.title)


def _listing(known: Sequence[Rule]) -> str:
    """A line for each rule: code, severity, and what it finds."""
    lines = []
    for rule in known:
        summary = explanation(rule).partition("\n")[0].removeprefix(rule.info.code).strip()
        lines.append(f"{rule.info.code}  {rule.info.severity:<7}  {summary}")
    return "\n".join(lines)


def _find(known: Sequence[Rule], code: str) -> Rule:
    by_code = {rule.info.code: rule for rule in known}
    rule = by_code.get(code.upper())
    if rule is None:
        from traincheck.api import nearest

        raise UsageError(
            f"no rule has the code {code!r}",
            fix=f"did you mean {nearest(code.upper(), by_code)}? traincheck rules lists all",
        )
    return rule
