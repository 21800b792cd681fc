"""Bring each event to those who asked for it. Knows needs and events, not what becomes of an event.

An event that nobody wants costs one dictionary lookup, whatever the number of monitors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from traincheck.schema.apis import ROLES, TELLING
from traincheck.schema.claims import Needs
from traincheck.schema.events import KINDS, Event

T = TypeVar("T")

NEW = "new"  # the moment in Needs.states of who asks which variables there are, not what they do
ANY = "*"  # in Needs.calls: every call; in the role or moment of Needs.states: all of them


def roles_of(needs: Needs, besides: frozenset[str] = frozenset()) -> frozenset[str]:
    """The roles of variables whose state changes ``needs`` asks for, ``besides`` some."""
    return frozenset(state.partition("@")[0] for state in needs.states - besides)


class Router(Generic[T]):
    """Receivers by event, in the order they were given.

    The tables are there for the engine's loop, which looks into them without a call in between.

    Args:
        receivers: what each receiver asks for.

    Attributes:
        calls: by API and family; what is not in it yet, `learn` finds.
        telling: by role, of changes that say which variables there are.
        changes: by role, of all others: not for those who only ask which variables are ``new``.
        kinds: by kind, of events that are neither.
    """

    def __init__(self, receivers: Sequence[tuple[Needs, T]]) -> None:
        self._receivers = tuple(receivers)
        # Filled on demand: a trace names the same few hundred APIs over and over.
        self.calls: dict[tuple[str, str | None], tuple[T, ...]] = {}
        self.telling = {role: self._for_role(role) for role in ROLES}
        self.changes = {role: self._for_role(role, changes=True) for role in ROLES}
        self.kinds = {kind: self._for_kind(kind) for kind in KINDS}

    def route(self, event: Event) -> tuple[T, ...]:
        """Who gets ``event``."""
        if event.kind == "call":
            key = (event.api, event.family)  # type: ignore[union-attr]
            return self.calls[key] if key in self.calls else self.learn(key)
        if event.kind == "state":
            table = self.telling if event.change in TELLING else self.changes  # type: ignore[union-attr]
            return table.get(event.role, ())  # type: ignore[union-attr]
        return self.kinds.get(event.kind, ())

    def learn(self, key: tuple[str, str | None]) -> tuple[T, ...]:
        """Who gets calls of an API and family."""
        api, family = key
        receivers = tuple(
            receiver
            for needs, receiver in self._receivers
            if "call" in needs.kinds
            or ANY in needs.calls
            or needs.hears(api)
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

    def _for_kind(self, kind: str) -> tuple[T, ...]:
        return tuple(receiver for needs, receiver in self._receivers if kind in needs.kinds)
