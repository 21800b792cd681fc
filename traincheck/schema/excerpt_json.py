"""Excerpts of an invariant file to JSON and back: each is written once, whoever shares it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import orjson

from traincheck.schema.excerpts import Excerpt, Line

_KEYS = frozenset({"depth", "api", "family", "note", "count"})


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


def excerpts_from_json(value: Any) -> dict[str, Excerpt]:
    """Excerpts by id.

    Raises:
        ValueError: ``value`` is not their JSON form; the message says where.
    """
    _require(isinstance(value, dict), "excerpts is not an object")
    return {key: _excerpt(one, f"excerpts[{key!r}]") for key, one in value.items()}


def _excerpt(value: Any, at: str) -> Excerpt:
    is_one = isinstance(value, dict) and value.keys() == {"depth", "lines"}
    _require(is_one, f"{at} is not an object with depth and lines")
    _require(isinstance(value["lines"], list), f"{at}.lines is not a list")
    lines = tuple(_line(one, f"{at}.lines[{i}]") for i, one in enumerate(value["lines"]))
    return Excerpt(depth=_number(value["depth"], f"{at}.depth", least=-1), lines=lines)


def _line(value: Any, at: str) -> Line:
    is_one = isinstance(value, dict) and {"depth", "api"} <= value.keys() <= _KEYS
    _require(is_one, f"{at} is not an object with depth and api")
    family = value.get("family")
    return Line(
        depth=_number(value["depth"], f"{at}.depth"),
        api=_text(value["api"], f"{at}.api"),
        family=None if family is None else _text(family, f"{at}.family"),
        note=_text(value.get("note", ""), f"{at}.note"),
        count=_number(value.get("count", 1), f"{at}.count", least=1),
    )


def _number(value: Any, at: str, least: int = 0) -> int:
    is_number = isinstance(value, int) and not isinstance(value, bool) and value >= least
    _require(is_number, f"{at} is not a count")
    return int(value)


def _text(value: Any, at: str) -> str:
    _require(isinstance(value, str), f"{at} is not text")
    return str(value)


def _require(is_so: bool, complaint: str) -> None:
    if not is_so:
        raise ValueError(complaint)
