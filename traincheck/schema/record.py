"""Bases of the records and events of traces, and why a document that is to be one was refused.

Records are immutable structs that msgspec decodes in C.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Struct, field, structs

_R = TypeVar("_R", bound="Record")
# Larger numbers are rejected when a record is decoded: neither JSON nor columns can hold them.
Int64: TypeAlias = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class Record(Struct, frozen=True, gc=False):
    """An immutable record with typed fields. It has no reference cycles, so gc is off."""

    def replace(self: _R, **changes: Any) -> _R:
        """A copy with other values in some fields."""
        return structs.replace(self, **changes)


class EventBase(Record, frozen=True, tag_field="k"):
    """The common fields of all events. Rank and stream are in the file name, not in the lines."""

    seq: Int64 = field(name="n")
    time_ns: Int64 = field(name="t")
    step: Int64 | None = field(name="s")
    stage: str = field(name="g")
    rank: Int64 = 0
    stream: str = ""
    kind: ClassVar[str]

    @property
    def header(self) -> tuple[int, int, int | None, str, int, str]:
        """The common fields, to make another event at the same position and time."""
        return (self.seq, self.time_ns, self.step, self.stage, self.rank, self.stream)


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
