"""Excerpts of call trees: what the calls of a window were, in a few lines. Says nothing of tensors.

An invariant keeps one of a reference run; beside it a finding shows what the run at hand did.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A call, or several equal ones in a row.

    depth: in the tree, from 0. api: empty for lines below that come ``count`` times in a row.
    family: of a landmark, and of a forward of a whole model. note: what else is to be seen of it.
    """

    depth: int
    api: str
    family: str | None = None
    note: str = ""
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """The calls of one window.

    depth: down to which the tree is told; -1 for its landmarks alone.
    """

    lines: tuple[Line, ...]
    depth: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line of the reference beside one of this run; None where that one has none.

    mark: ``-`` only in the reference, ``+`` only here, ``~`` different, else a space.
    """

    reference: str | None
    observed: str | None
    mark: str = " "
