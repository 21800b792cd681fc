"""Base of what is read from traces: immutable records that msgspec makes from JSON in C."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias, TypeVar

from msgspec import Meta, Struct, structs

_R = TypeVar("_R", bound="Record")
# Larger numbers are refused when a record is decoded: neither JSON nor columns could hold them.
Int64: TypeAlias = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class Record(Struct, frozen=True, gc=False):
    """An immutable record with typed fields. It never refers to itself, so gc need not look."""

    def replace(self: _R, **changes: Any) -> _R:
        """A copy with other values in some fields."""
        return structs.replace(self, **changes)
