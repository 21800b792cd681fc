"""Functions that are called at a moment, and objects that listen until they are removed."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

_F = TypeVar("_F")


class Listeners(Generic[_F]):
    """The functions that are called at one moment, in the order in which they came.

    Attributes:
        all: a tuple, so that one that is called may leave, or let others in, meanwhile.
    """

    __slots__ = ("all",)

    def __init__(self) -> None:
        self.all: tuple[_F, ...] = ()

    def add(self, action: _F) -> None:
        """Call ``action`` from now on, after the others."""
        self.all = (*self.all, action)

    def leave(self, action: _F) -> None:
        """Call it no more."""
        self.all = tuple(other for other in self.all if other != action)

    def clear(self) -> None:
        """Call none any more."""
        self.all = ()


class Listener:
    """Listens at moments until `mute`."""

    def __init__(self) -> None:
        self._heard: list[tuple[Listeners[Any], Any]] = []

    def listen(self, moment: Listeners[_F], action: _F) -> None:
        """Be called at a moment."""
        moment.add(action)
        self._heard.append((moment, action))

    def mute(self) -> None:
        """Be called at no moment any more."""
        while self._heard:
            moment, action = self._heard.pop()
            moment.leave(action)
