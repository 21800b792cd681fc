"""Calls that listeners pass on: of modules, of the engine of backward passes, and of loaders.

On these paths, or while one listener is there alone, nothing is made for a call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from traincheck.collect.moments.replacements import Replaced
from traincheck.collect.trace_writer.emitter import hidden
from traincheck.collect.trace_writer.recording_state import is_traced, state

# Gets the function to call, its first argument, the other ones, and returns the result
Link: TypeAlias = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]


class Calls(Replaced[Link]):
    """The listeners of a function, each within the next one.

    The last one that came is the outermost.

    Attributes:
        outer: the outermost, or what only passes calls on.
        inner: the function that it gets: the original within all others.
    """

    __slots__ = ("_original", "inner", "outer")

    def __init__(self, place: tuple[Any, str] | None = None) -> None:
        super().__init__(place)
        self._original: Callable[..., Any] = _pass_on
        self._link()

    def add(self, action: Link) -> None:
        super().add(action)
        self._link()

    def leave(self, action: Link) -> None:
        super().leave(action)
        self._link()

    def within(self, original: Callable[..., Any]) -> None:
        """Set the original, for an owner that replaces it and calls ``outer`` itself."""
        self._original = original
        self._link()

    def _link(self) -> None:
        inner = self._original
        for action in self.all[:-1]:
            inner = _bound(action, inner)
        self.outer: Link = self.all[-1] if self.all else _pass_on
        self.inner: Callable[..., Any] = inner

    def wrapped(self, original: Callable[..., Any]) -> Callable[..., Any]:
        self.within(original)
        calls = self

        def call(first: Any, /, *args: Any, **kwargs: Any) -> Any:
            if is_traced() or state._is_compiling_flag:
                return original(first, *args, **kwargs)
            return calls.outer(calls.inner, first, args, kwargs)

        return hidden(call)


class ModuleCalls(Calls):
    """Calls of modules, within `Module.__call__`, which records them: for what measures modules."""

    __slots__ = ()

    def wrapped(self, original: Callable[..., Any]) -> Callable[..., Any]:
        self.within(original)
        calls = self

        # The profiler of torch reads the local named self
        def _call_impl(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            if is_traced() or state._is_compiling_flag:
                return original(self, *args, **kwargs)
            return calls.outer(calls.inner, self, args, kwargs)

        return hidden(_call_impl)


@hidden
def _pass_on(
    original: Callable[..., Any], first: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    return original(first, *args, **kwargs)


def _bound(action: Link, inner: Callable[..., Any]) -> Callable[..., Any]:
    def call(first: Any, /, *args: Any, **kwargs: Any) -> Any:
        return action(inner, first, args, kwargs)

    return hidden(call)
