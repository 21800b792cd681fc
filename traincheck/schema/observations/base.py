"""The base of observations: the mark, the need, and the instrument."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, ClassVar

from traincheck.schema.claims import Needs


class Observation:
    """A fact about a program, carried by a mark of the trace.

    Subclasses are frozen dataclasses. Their fields stand in the data of the mark in this order.
    Training loads these modules, so they import the standard library alone.

    Attributes:
        text: of the mark that carries it.
        need: what a check puts into `Needs.states` to get it; empty if it is recorded for all.
        instrument: without which it cannot be recorded.
        keys: of fields whose key in the trace cannot be a name in Python, by field.
        sparse: fields that are left out of the trace where they have their default.
        is_for_checks: whether rules and relations read it; else only commands that compare runs do.
    """

    __slots__ = ()
    text: ClassVar[str]
    need: ClassVar[str] = ""
    instrument: ClassVar[str]
    keys: ClassVar[Mapping[str, str]] = {}
    sparse: ClassVar[frozenset[str]] = frozenset()
    is_for_checks: ClassVar[bool] = True

    def data(self) -> dict[str, Any]:
        """The data of its mark, ready to be serialized."""
        found: dict[str, Any] = {}
        for field in fields(self):  # type: ignore[arg-type]  # subclasses are dataclasses
            value, make = getattr(self, field.name), field.default_factory
            default = field.default if make is MISSING else make()
            if field.name not in self.sparse or value != default:
                found[self.keys.get(field.name, field.name)] = value
        return found


def needs_of(*kinds: type[Observation]) -> Needs:
    """The needs of a check that reads these observations."""
    return Needs(
        states=frozenset(kind.need for kind in kinds if kind.need),
        kinds=frozenset({"mark"}),
        marks=frozenset(kind.text for kind in kinds),
    )
