"""Bring each event to those who asked for it. Knows needs and events, not what becomes of an event.

An event that nobody wants costs one dictionary lookup, whatever the number of monitors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from traincheck.schema.claims import Needs
from traincheck.schema.events import KINDS, ROLES, CallEvent, Event

T = TypeVar("T")

ANY = "*"  # in Needs.calls: every call; in the role or moment of Needs.states: all of them


def roles_of(needs: Needs) -> frozenset[str]:
    """The roles of variables whose state changes ``needs`` asks for, at whatever moment."""
    return frozenset(state.partition("@")[0] for state in needs.states)


class Router(Generic[T]):
    """Receivers by event, in the order they were given.

    Args:
        receivers: what each receiver asks for.
    """

    def __init__(self, receivers: Sequence[tuple[Needs, T]]) -> None:
        self._receivers = tuple(receivers)
        # Filled on demand: a trace names the same few hundred APIs over and over.
        self._calls: dict[tuple[str, str | None], tuple[T, ...]] = {}
        self._states = {role: self._for_role(role) for role in ROLES}
        self._kinds = {kind: self._for_kind(kind) for kind in KINDS}

    def route(self, event: Event) -> tuple[T, ...]:
        """Who gets ``event``."""
        kind = event.kind
        if kind == "call":
            # A tuple as the key, not nested dictionaries: 15 ns less where nobody wants the call.
            receivers = self._calls.get((event.api, event.family))  # type: ignore[union-attr]
            return self._learn(event) if receivers is None else receivers  # type: ignore[arg-type]
        if kind == "state":
            return self._states.get(event.role, ())  # type: ignore[union-attr]
        return self._kinds.get(kind, ())

    def _learn(self, event: CallEvent) -> tuple[T, ...]:
        receivers = tuple(
            receiver
            for needs, receiver in self._receivers
            if "call" in needs.kinds
            or ANY in needs.calls
            or event.api in needs.calls
            or event.family in needs.calls
        )
        self._calls[event.api, event.family] = receivers
        return receivers

    def _for_role(self, role: str) -> tuple[T, ...]:
        return tuple(
            receiver
            for needs, receiver in self._receivers
            if "state" in needs.kinds or not roles_of(needs).isdisjoint((role, ANY))
        )

    def _for_kind(self, kind: str) -> tuple[T, ...]:
        return tuple(receiver for needs, receiver in self._receivers if kind in needs.kinds)
