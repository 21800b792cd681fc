"""Base of the records of traces: immutable structs that msgspec decodes in C."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias, TypeVar

from msgspec import Meta, Struct, structs

_R = TypeVar("_R", bound="Record")
# Larger numbers are rejected when a record is decoded: neither JSON nor columns can hold them.
Int64: TypeAlias = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class Record(Struct, frozen=True, gc=False):
    """An immutable record with typed fields. It has no reference cycles, so gc is off."""

    def replace(self: _R, **changes: Any) -> _R:
        """A copy with other values in some fields."""
        return structs.replace(self, **changes)
