"""The errors of msgspec for a document that does not fit its type: place, value, reason."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import msgspec

_STEP = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")
_EXPECTED = re.compile(r"Expected `(.*?)`")
_FIELD = re.compile(r"Object (missing required|contains unknown) field `(.*)`")


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    """Why a document was refused.

    Attributes:
        at: the place in the document, such as ``collect.every``; empty for the document itself.
        steps: the same as names and indices. Keys of a mapping, which msgspec does not name, and
            what is below them are left out.
        value: what stands at the end of ``steps``.
        reason: the sentence of msgspec, without the place.
        expected: its names for types that the value may have, such as ``int`` and ``object``.
        missing: the required field that an object lacks.
        unknown: the field of an object that its type lacks.
    """

    at: str
    steps: tuple[str | int, ...]
    value: Any
    reason: str
    expected: tuple[str, ...] = ()
    missing: str = ""
    unknown: str = ""


def complaint_of(document: Any, error: msgspec.ValidationError) -> Complaint:
    """Take the message of msgspec apart.

    Args:
        document: what could not be converted.
        error: says "Expected `int | null`, got `str` - at `$.collect.every`".
    """
    reason, _, at = str(error).partition(" - at `$")
    steps: list[str | int] = []
    value = document
    for name, index in _STEP.findall(at):
        if index == "...":
            break
        steps.append(name or int(index))
        value = value[steps[-1]]
    expected, field = _EXPECTED.match(reason), _FIELD.match(reason)
    kind, name = field.groups() if field else ("", "")
    return Complaint(
        at=at.removesuffix("`").removeprefix("."),
        steps=tuple(steps),
        value=value,
        reason=reason,
        expected=tuple(expected[1].split(" | ")) if expected else (),
        missing=name if kind.startswith("missing") else "",
        unknown=name if kind.startswith("contains") else "",
    )
