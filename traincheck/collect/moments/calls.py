"""Calls that listeners pass on: of modules, of the engine of backward passes, and of loaders.

On these paths, or while one listener is there alone, nothing is made for a call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from traincheck.collect.moments.replaced import Replaced
from traincheck.collect.trace_writer.emitter import hidden
from traincheck.collect.trace_writer.recording_state import is_traced, state

# Gets the function to call, its first argument, the other ones, and returns the result
Link: TypeAlias = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]


class Calls(Replaced[Link]):
    """Who came last is the outermost.

    Attributes:
        run: calls all who listen.
    """

    __slots__ = ("run",)
    run: Link

    def add(self, action: Link) -> None:
        super().add(action)
        self._link()

    def leave(self, action: Link) -> None:
        super().leave(action)
        self._link()

    def _link(self) -> None:
        self.run = _pass_on
        for place, action in enumerate(self.all):
            self.run = _over(action, self.run) if place else action

    def wrapped(self, original: Callable[..., Any]) -> Callable[..., Any]:
        calls = self

        def call(first: Any, /, *args: Any, **kwargs: Any) -> Any:
            if is_traced() or state._is_compiling_flag:
                return original(first, *args, **kwargs)
            return calls.run(original, first, args, kwargs)

        return hidden(call)


class ModuleCalls(Calls):
    """Calls of modules, within `Module.__call__`, which records them: for what measures modules."""

    __slots__ = ()

    def wrapped(self, original: Callable[..., Any]) -> Callable[..., Any]:
        calls = self

        # The profiler of torch reads the local named self
        def _call_impl(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            if is_traced() or state._is_compiling_flag:
                return original(self, *args, **kwargs)
            return calls.run(original, self, args, kwargs)

        return hidden(_call_impl)


def _pass_on(
    original: Callable[..., Any], first: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    return original(first, *args, **kwargs)


hidden(_pass_on)


def _over(outer: Link, inner: Link) -> Link:
    def run(
        original: Callable[..., Any], first: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        def call(first: Any, /, *args: Any, **kwargs: Any) -> Any:
            return inner(original, first, args, kwargs)

        return outer(hidden(call), first, args, kwargs)

    return hidden(run)
