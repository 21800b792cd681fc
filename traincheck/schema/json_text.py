"""JSON of untrusted files: decoded within limits, and written for any value."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import orjson

MOST_VALUES = 2_000_000  # of a document: each takes up to 100 bytes in memory
MOST_DEPTH = 100  # of nested lists and objects; orjson writes 254

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_SQUARE = bytes.maketrans(b"{}", b"[]")
_LEAST, _MOST = -(1 << 63), 1 << 64


def parse_json(content: bytes) -> Any:
    """Decode JSON within limits of memory and depth.

    Raises:
        ValueError: it is not JSON, has too many values, or is nested too deeply.
    """
    openings = content.count(b"[") + content.count(b"{")
    if openings + content.count(b",") > MOST_VALUES:
        raise ValueError(f"more than {MOST_VALUES:,} values")
    value = orjson.loads(content)
    if openings > MOST_DEPTH and is_deep(content):
        raise ValueError(f"nested more than {MOST_DEPTH} levels deep")
    return value


def is_deep(content: bytes) -> bool:
    """Whether JSON is nested more than `MOST_DEPTH` levels deep."""
    brackets = _STRING.sub(b"", content).translate(_SQUARE, _NO_BRACKETS)
    for _ in range(MOST_DEPTH):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)


def dump_json(value: Any, *, default: Callable[[Any], Any] | None = None, option: int = 0) -> bytes:
    """Encode a value as JSON; other values become text. Arguments: see `orjson.dumps`.

    Numbers of more than 64 bits become text, values nested too deeply ``...``, and lone surrogates
    escapes.
    """
    try:
        return orjson.dumps(value, default=default, option=option)
    except TypeError:
        return orjson.dumps(_fitted(value, 0), default=default, option=option)


def _fitted(value: Any, depth: int) -> Any:
    if depth > MOST_DEPTH // 2:  # it may be nested in others
        return "..."
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, int):
        return value if _LEAST <= value < _MOST else _digits(value)
    if isinstance(value, dict):
        return {str(_fitted(k, depth)): _fitted(part, depth + 1) for k, part in value.items()}
    if isinstance(value, list | tuple):
        return [_fitted(part, depth + 1) for part in value]
    return value


def _digits(value: int) -> str:
    return f"{value:#x}" if value.bit_length() > _SHOWN_BITS else str(value)


_SHOWN_BITS = 1_000  # Python refuses to write much longer numbers in decimal
