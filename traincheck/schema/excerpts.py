"""Excerpts of call trees: the calls of a window in a few lines, and their JSON.

An invariant stores an excerpt of a reference run. A finding shows it next to that of the checked
run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson


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


def excerpt_id(excerpt: Excerpt) -> str:
    """The id of an excerpt; equal excerpts have equal ids."""
    content = orjson.dumps(excerpt_json(excerpt), option=orjson.OPT_SORT_KEYS)
    return f"x-{hashlib.sha256(content).hexdigest()[:10]}"


def excerpts_json(excerpts: Iterable[Excerpt | None]) -> dict[str, Any]:
    """The different ones by id, in the order of their ids."""
    found = {excerpt_id(excerpt): excerpt for excerpt in {e for e in excerpts if e is not None}}
    return {key: excerpt_json(excerpt) for key, excerpt in sorted(found.items())}


def excerpt_json(excerpt: Excerpt) -> dict[str, Any]:
    """``{"depth": 1, "lines": [{"depth": 0, "api": ...}, ...]}``; what is usual is left out."""
    return {"depth": excerpt.depth, "lines": [_line_json(line) for line in excerpt.lines]}


def _line_json(line: Line) -> dict[str, Any]:
    given: dict[str, Any] = {"depth": line.depth, "api": line.api}
    if line.family is not None:
        given["family"] = line.family
    if line.note:
        given["note"] = line.note
    if line.count != 1:
        given["count"] = line.count
    return given
