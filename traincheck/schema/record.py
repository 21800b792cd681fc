"""Bases of the records and events of traces: immutable structs that msgspec decodes in C."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, TypeAlias, TypeVar

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
