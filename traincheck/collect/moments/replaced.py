"""A function that is replaced while somebody listens to its calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from traincheck.collect.listeners import Listeners
from traincheck.collect.moments.replacements import replaced

_F = TypeVar("_F")


class Replaced(Listeners[_F]):
    """The listeners of one function.

    Args:
        place: the holder of the function and its name there; None if its owner replaces it.
    """

    __slots__ = ("_layer", "_place")

    def __init__(self, place: tuple[Any, str] | None = None) -> None:
        super().__init__()
        self._place = place
        self._layer: Callable[[], Any] | None = None

    def wrapped(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A function that calls the original, and all who listen."""
        raise AssertionError(f"{type(self).__name__} does not say how it calls {original}")

    def add(self, action: _F) -> None:
        super().add(action)
        if self._layer is None and self._place is not None:
            self._layer = replaced(self, *self._place, self.wrapped)

    def leave(self, action: _F) -> None:
        super().leave(action)
        layer = self._layer
        if layer is not None and not self.all:
            self._layer = None
            layer().take_out()

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Restore the original temporarily, for code that inspects functions."""
        layer = self._layer
        if layer is not None:
            layer().take_out()
        try:
            yield
        finally:
            if layer is not None and self._layer is layer:  # else the last listener has left
                layer().put_back()
