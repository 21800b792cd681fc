"""Replaced attributes of torch, and their originals."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from traincheck.collect.trace_writer.emitter import hidden


class Patches:
    """Replacements that last for the profiled steps."""

    def __init__(self) -> None:
        self._originals: list[tuple[Any, str, Any]] = []

    @property
    def is_installed(self) -> bool:
        return bool(self._originals)

    def replace(
        self, holder: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]
    ) -> None:
        """Set ``holder.name`` to ``make(original)``, under the name and docs of the original."""
        original = getattr(holder, name)
        replacement = hidden(make(original))
        functools.update_wrapper(replacement, original)
        self._originals.append((holder, name, original))
        setattr(holder, name, replacement)

    def restore(self) -> None:
        """Put the originals back, the last first. Does nothing if they are there."""
        while self._originals:
            holder, name, original = self._originals.pop()
            setattr(holder, name, original)
