"""A difference as text for people, and as Markdown."""

from __future__ import annotations

from typing import TextIO

from traincheck.diff.difference import Difference
from traincheck.diff.items import Item
from traincheck.diff.messages import texts_of
from traincheck.report.difference.lines import headline, resumed, rows, size_text
from traincheck.schema.printable import printable

_INDENT, _WIDTH = 2, 15


def write_text(difference: Difference, stream: TextIO, shown: int = 0) -> None:
    """Write the report; `shown` further differences of the same step follow it."""
    lines = [resumed(difference), "", headline(difference), ""]
    if not lines[0]:
        lines = lines[2:]
    for name, texts in rows(difference):
        for number, text in enumerate(texts):
            label = name if number == 0 else ""
            lines.append(f"{' ' * _INDENT}{label:<{_WIDTH}}{text}")
    lines += _others(difference, shown)
    while lines and not lines[-1]:
        lines.pop()
    stream.write("".join(f"{printable(line)}\n" for line in lines))


def write_markdown(difference: Difference, stream: TextIO, shown: int = 0) -> None:
    """Write the report as Markdown: a heading, a list, and a table of the phases."""
    lines = [f"## {_escaped(headline(difference))}", ""]
    if difference.resume is not None:
        lines += [_escaped(resumed(difference)), ""]
    for name, texts in rows(difference):
        for number, text in enumerate(texts):
            lines.append(
                f"- **{name}**: {_escaped(text)}"
                if number == 0 and name
                else f"  - {_escaped(text)}"
            )
    if difference.phases:
        lines += ["", "| phase | differing | compared | not comparable |", "|---|---|---|---|"]
        lines += [
            f"| {c.phase.words} | {c.differing} | {c.compared} | {c.unknown} |"
            for c in difference.phases
        ]
    stream.write("".join(f"{printable(line)}\n" for line in [*lines, *_others(difference, shown)]))


def _others(difference: Difference, shown: int) -> list[str]:
    """The other differences of the step, if they are asked for."""
    if not (shown and difference.then):
        return []
    lines = ["", f"other differences of step {difference.first.step}:" if difference.first else ""]
    lines += [f"  {_line(item)}" for item in difference.then[:shown]]
    if len(difference.then) > shown:
        lines.append(f"  and {len(difference.then) - shown:,} more")
    return lines


def _line(item: Item) -> str:
    a, b = texts_of(item)
    size = f"  {size_text(item.size)}" if item.size is not None else ""
    return f"{item.phase.words:<16}{item.name}  {a} | {b}{size}"


def _escaped(text: str) -> str:
    for mark in "\\`*_<>|[]":
        text = text.replace(mark, f"\\{mark}")
    return text
