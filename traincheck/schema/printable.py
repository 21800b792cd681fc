"""Text that is safe to show in a terminal or a CI log.

Names come from traces and files, which may come from anyone. These become escapes: control
characters, characters that change how text reads (direction, invisible characters, line
separators), and commands of CI logs (``::error``, ``##[error]``).
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any, TypeVar

_T = TypeVar("_T")
_INVISIBLE = (
    "\x00-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U000e0000-\U000e0fff\ud800-\udfff"
)
_UNSAFE = re.compile(rf"[{_INVISIBLE}]|(?<!\S)::|##(?=\w*\[)")
_IN_JSON = re.compile(rf"[{_INVISIBLE}]|##(?=\w*\[)")


def printable(text: str) -> str:
    """Text on one line: line breaks are escaped, too."""
    return _UNSAFE.sub(_escaped, text) if _may_be_unsafe(text) else text


def printable_lines(text: str) -> str:
    """Text of several lines, each of them `printable`."""
    return "\n".join(map(printable, text.split("\n")))


def printable_json(text: str) -> str:
    """JSON with escapes for the same characters, which keeps its meaning."""
    lines = text.split("\n")  # of indented JSON
    return "\n".join(_IN_JSON.sub(_in_json, line) for line in lines)


def all_printable(value: _T) -> _T:
    """A report or a part of one, with printable text. Keys and evidence are unchanged."""
    made: Any = _made(value)
    return made  # type: ignore[no-any-return]


def _made(value: Any) -> Any:
    if type(value) is str:
        return printable(value)
    if isinstance(value, tuple | list):
        return type(value)(map(_made, value))
    if isinstance(value, Mapping):
        return {key: _made(part) for key, part in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return dataclasses.replace(value, **{name: _made(part) for name, part in parts.items()})
    return value


def _may_be_unsafe(text: str) -> bool:
    return not (text.isascii() and text.isprintable()) or "::" in text or "##" in text


def _escaped(match: re.Match[str]) -> str:
    found = match[0]
    if found == "::":
        return r"\x3a:"
    if found == "##":
        return r"\x23#"
    return found.encode("unicode_escape").decode()


def _in_json(match: re.Match[str]) -> str:
    found = match[0]
    if found == "##":
        return r"\u0023#"
    return r"\u007f" if found == "\x7f" else json.dumps(found)[1:-1]
