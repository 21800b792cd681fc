"""The source of a run with its facts beside the lines that they are about.

Lines come from the copies that the trace holds, and only from them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from traincheck.check.suppression.source_files import split_place
from traincheck.diff.sources import Program, is_file
from traincheck.facts.card import Card, Line

_AROUND = 4  # lines before and behind one with a fact
_WHOLE = 120  # a file up to so many lines is shown whole


@dataclass(frozen=True, slots=True)
class Row:
    """One line of source. number: from 1; 0 stands for lines that are left out."""

    number: int
    code: str = ""
    facts: Sequence[Line] = ()


@dataclass(frozen=True, slots=True)
class File:
    """A file with facts. changed: whether it was written after the program had begun."""

    path: str
    rows: Sequence[Row]
    changed: bool = False


def annotated(card: Card, program: Program, changed: Sequence[str] = ()) -> Iterator[File]:
    """The files that facts are about, the script first."""
    by_file: dict[str, dict[int, list[Line]]] = defaultdict(lambda: defaultdict(list))
    for line in card.lines:
        place = split_place(line.fact.where)
        if place is None:
            continue
        known = next((path for path in program.files if is_file(path, place[0])), None)
        if known is not None:
            by_file[known][place[1]].append(line)
    for path in sorted(by_file, key=lambda known: (known != program.script, known)):
        if path in changed:
            yield File(path, (), changed=True)
        else:
            yield File(path, list(_rows(program.files[path].lines, by_file[path])))


def _rows(code: Sequence[str], facts: dict[int, list[Line]]) -> Iterator[Row]:
    shown = {
        number
        for at in facts
        for number in range(at - _AROUND, at + _AROUND + 1)
        if len(code) > _WHOLE
    }
    last = 0
    for number, text in enumerate(code, 1):
        if len(code) > _WHOLE and number not in shown:
            continue
        if number > last + 1:
            yield Row(0)
        last = number
        yield Row(number, text, facts.get(number, ()))
