"""Text for people on a page of some width. Lines are broken between words alone.

A name or a path that is broken in two can be neither searched for nor copied: rather, it goes over
the edge.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

COLOURS = {"error": "bold red", "warning": "bold yellow", "info": "bold blue"}
_PLAIN_WIDTH = 80  # of a file or a pipe
_MAX_WIDTH = 110  # longer lines are hard to read
_GAP = 2
_WORD = re.compile(r"\S+\s*")


def page(stream: TextIO) -> Console:
    """A console as wide as the terminal, or as COLUMNS says; in colour where that is shown."""
    console = Console(file=stream, highlight=False, force_jupyter=False)
    is_told = console.is_terminal or os.environ.get("COLUMNS", "").isdecimal()
    console.width = min(console.width, _MAX_WIDTH) if is_told else _PLAIN_WIDTH
    return console


def paragraph(console: Console, text: Text, indent: int = 0) -> None:
    """A paragraph."""
    _lines(console, text, Text(" " * indent))


def table(console: Console, rows: Iterable[tuple[str, str]], indent: int = 0) -> int:
    """Names and what is said of them, side by side. Gives the width of the names."""
    rows = list(rows)
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        head = Text(" " * indent).append(f"{name:<{width + _GAP}}", style="dim")
        _lines(console, Text(text), head)
    return width


def _lines(console: Console, text: Text, head: Text) -> None:
    """The first one after ``head``, the others below its end."""
    for part in text.split("\n", allow_blank=True):
        # Where lines begin, but for the first one. Rich itself would break a long word.
        room = console.width - len(head)
        found, begin = [], 0
        for word in _WORD.finditer(part.plain):
            if word.start() > begin and cell_len(part.plain[begin : word.end()].rstrip()) > room:
                begin = word.start()
                found.append(begin)
        for line in part.divide(found):
            line.rstrip()
            console.print(head.copy().append_text(line), soft_wrap=True)
            head = Text(" " * len(head))
