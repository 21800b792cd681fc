"""Excerpts of call trees: the calls of a window in a few lines, without tensors.

An invariant stores an excerpt of a reference run. A finding shows it next to that of the checked
run.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A call, or several equal ones in a row.

    Attributes:
        depth: in the tree, from 0.
        api: empty for a group of deeper lines that repeats ``count`` times.
        family: of a landmark, and of a forward of a whole model.
        note: further details.
    """

    depth: int
    api: str
    family: str | None = None
    note: str = ""
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """The calls of one window.

    depth: of the shown tree; -1 for landmarks only.
    """

    lines: tuple[Line, ...]
    depth: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line of the reference next to a line of this run; None if one side has no line.

    mark: ``-`` only in the reference, ``+`` only in this run, ``~`` different, else a space.
    """

    reference: str | None
    observed: str | None
    mark: str = " "
