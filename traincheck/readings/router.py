"""Route each event to its subscribers.

An event without subscribers costs one dictionary lookup, whatever the number of monitors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from traincheck.schema.claims import Needs
from traincheck.schema.events import KINDS, Event
from traincheck.schema.marks import LIFECYCLE_CHANGES, ROLES

T = TypeVar("T")

NEW = "new"  # moment in Needs.states: only which variables exist, not how they change
ANY = "*"  # in Needs.calls: every call; in the role or moment of Needs.states: all of them


def roles_of(needs: Needs, besides: frozenset[str] = frozenset()) -> frozenset[str]:
    """The roles of variables whose state changes ``needs`` asks for, without ``besides``."""
    return frozenset(state.partition("@")[0] for state in needs.states - besides)


class Router(Generic[T]):
    """Finds the receivers of an event, in the order they were given.

    The engine's loop reads the tables directly, which saves a call for each event.

    Args:
        receivers: each with the events that it asks for.

    Attributes:
        calls: by API and family. `resolve` adds missing entries.
        lifecycle: by role, of changes that tell which variables exist.
        changes: by role, of all other changes. Receivers that only ask for ``new`` variables
            do not get them.
        kinds: by kind, of all other events.
    """

    def __init__(self, receivers: Sequence[tuple[Needs, T]]) -> None:
        self._receivers = tuple(receivers)
        # Filled on demand: a trace names the same few hundred APIs over and over.
        self.calls: dict[tuple[str, str | None], tuple[T, ...]] = {}
        self.lifecycle = {role: self._for_role(role) for role in ROLES}
        self.changes = {role: self._for_role(role, changes=True) for role in ROLES}
        self.kinds = {
            kind: tuple(receiver for needs, receiver in self._receivers if kind in needs.kinds)
            for kind in KINDS
        }

    def route(self, event: Event) -> tuple[T, ...]:
        """The receivers of ``event``."""
        if event.kind == "call":
            key = (event.api, event.family)
            return self.calls[key] if key in self.calls else self.resolve(key)
        if event.kind == "state":
            table = self.lifecycle if event.change in LIFECYCLE_CHANGES else self.changes
            return table.get(event.role, ())
        return self.kinds.get(event.kind, ())

    def resolve(self, key: tuple[str, str | None]) -> tuple[T, ...]:
        """The receivers of calls of an API and family."""
        api, family = key
        receivers = tuple(
            receiver
            for needs, receiver in self._receivers
            if "call" in needs.kinds
            or ANY in needs.calls
            or needs.delivers(api)
            or family in needs.calls
        )
        self.calls[key] = receivers
        return receivers

    def _for_role(self, role: str, *, changes: bool = False) -> tuple[T, ...]:
        besides = frozenset({f"{role}@{NEW}", f"{ANY}@{NEW}"} if changes else ())
        return tuple(
            receiver
            for needs, receiver in self._receivers
            if "state" in needs.kinds or not roles_of(needs, besides).isdisjoint((role, ANY))
        )
