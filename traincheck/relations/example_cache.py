"""Give the same object for the same answer, so that its examples are counted once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from traincheck.schema.claims import Context
from traincheck.schema.findings import Example

Examples = Sequence[tuple[int, Example]]


class ExampleCache:
    """Joins answers. If every part is the object of the last time, so is the result."""

    def __init__(self) -> None:
        self._parts: list[Examples] = []
        self._joined: Examples = ()

    def join(self, parts: Iterable[Examples]) -> Examples:
        """All parts, one after the other."""
        found = [part for part in parts if part]
        last = self._parts
        if len(found) == len(last) and all(a is b for a, b in zip(found, last)):
            return self._joined
        self._parts = found
        self._joined = tuple(pair for part in found for pair in part)
        return self._joined


class PositiveExamples:
    """One positive example for each context."""

    def __init__(self) -> None:
        self._by_identity: dict[int, Example] = {}
        self._by_features: dict[tuple[Any, ...], Example] = {}

    def of(self, context: Context) -> Example:
        """The example in a context that is shared: contexts are compared by identity."""
        known = self._by_identity.get(id(context))
        if known is None:  # the example keeps the context, so that its identity is not used again
            known = self._by_identity[id(context)] = Example(holds=True, context=context)
        return known

    def with_features(self, **features: Any) -> Example:
        """The example in the context of these features: they are compared by value."""
        key = tuple(features.items())
        known = self._by_features.get(key)
        if known is None:
            known = self._by_features[key] = Example(holds=True, context=features)
        return known
