"""The reference and this run, side by side as text, or one below the other if it is narrow.

What stands beside what is settled in check/context/violation_context.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from traincheck.schema.claims import Row

_LEFT, _RIGHT = "the reference", "this run"
_STACKED_BELOW = 64  # columns: then each side would be narrower than a call and its line
_STYLES = {"-": "red", "+": "green", "~": "yellow", " ": ""}


def beside(
    rows: Sequence[Row], console: Console, heads: tuple[str, str] = (_LEFT, _RIGHT)
) -> RenderableType:
    """Both sides, with ``-`` before what only the left has, ``+`` the right, ``~`` what differs."""
    return Group(*_lines(rows, heads)) if console.width < _STACKED_BELOW else _columns(rows, heads)


def excerpt_json(rows: Sequence[Row], sides: tuple[str, str]) -> dict[str, list[str]]:
    """Both sides as lines that begin with their mark. sides: whose they are."""
    return {
        "sides": list(sides),
        "reference": [f"{_mark_left(r)} {r.reference}".rstrip() for r in rows if r.reference],
        "observed": [f"{_mark_right(r)} {r.observed}".rstrip() for r in rows if r.observed],
    }


def _columns(rows: Sequence[Row], heads: tuple[str, str]) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(ratio=1, overflow="fold")
    table.add_column(no_wrap=True, style="dim")
    table.add_column(ratio=1, overflow="fold")
    table.expand = True
    table.add_row("", Text(heads[0], style="dim"), "|", Text(heads[1], style="dim"))
    for row in rows:
        style = _STYLES[row.mark]
        table.add_row(
            Text(row.mark, style=style),
            _indented(row.reference, style),
            "|",
            _indented(row.observed, style),
        )
    return table


def _indented(text: str | None, style: str) -> RenderableType:
    """A line that is broken goes on where it began."""
    if not text:
        return Text("")
    said = text.lstrip(" ")
    indent = len(text) - len(said)
    if not indent:
        return Text(said, style=style)
    table = Table.grid()
    table.add_column(width=indent)
    table.add_column(overflow="fold")
    table.add_row("", Text(said, style=style))
    return table


def _lines(rows: Sequence[Row], heads: tuple[str, str]) -> Iterator[Text]:
    yield Text(f"{heads[0]}:", style="dim")
    for row in rows:
        if row.reference:
            yield Text(f"{_mark_left(row)} {row.reference}", style=_STYLES[row.mark])
    yield Text(f"{heads[1]}:", style="dim")
    for row in rows:
        if row.observed:
            yield Text(f"{_mark_right(row)} {row.observed}", style=_STYLES[row.mark])


def _mark_left(row: Row) -> str:
    return row.mark if row.mark != "+" else " "


def _mark_right(row: Row) -> str:
    return row.mark if row.mark != "-" else " "
