"""Base of what is read from traces: immutable records that msgspec makes from JSON in C."""

from __future__ import annotations

from typing import Any, TypeVar

from msgspec import Struct, structs

_R = TypeVar("_R", bound="Record")


class Record(Struct, frozen=True, gc=False):
    """An immutable record with typed fields. It never refers to itself, so gc need not look."""

    def replace(self: _R, **changes: Any) -> _R:
        """A copy with other values in some fields."""
        return structs.replace(self, **changes)
