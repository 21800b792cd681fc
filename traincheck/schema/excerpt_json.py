"""Excerpts of an invariant file as JSON: each is written once, whoever shares it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import orjson

from traincheck.schema.excerpts import Excerpt, Line


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
