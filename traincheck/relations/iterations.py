"""Which updates belong to one iteration: a loop may make several from one batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from traincheck.schema.claims import Context
from traincheck.schema.events import BatchEvent, CallEvent, Event, StepEvent
from traincheck.schema.findings import Example
from traincheck.schema.torch_api import Families

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


@dataclass(frozen=True, slots=True)
class Update:
    """An update. batch: the number of the one batch that it is made from, where that is known."""

    optimizers: frozenset[str | None] = frozenset()
    batch: int | None = None

    def is_with(self, other: Update) -> bool:
        """Whether both belong to one iteration, that is, to one batch.

        Where the batch is not known: whether their optimizers differ, as for a generator and its
        critic.
        """
        if self.batch is not None and other.batch is not None:
            return self.batch == other.batch
        is_known = bool(self.optimizers and other.optimizers)
        return is_known and self.optimizers.isdisjoint(other.optimizers)


@dataclass(slots=True)
class UpdateTracker:
    """Follows the updates of a process. last: the update of the last step."""

    last: Update = Update()
    _optimizers: set[str | None] = field(default_factory=set)
    _number: int = 0
    _drawn: int | None = None  # the latest batch, if drawn alone, and after an update
    _batch: int | None = None  # the latest when an optimizer stepped
    _has_updated: bool = False  # since a batch was drawn

    def observe(self, event: Event) -> None:
        """Enter an event."""
        if isinstance(event, CallEvent):
            if event.family == Families.OPTIMIZER_STEP:
                self._optimizers.add(event.owner)
                self._batch, self._has_updated = self._drawn, True
        elif isinstance(event, StepEvent):
            self.last = Update(frozenset(self._optimizers), self._batch)
            self._optimizers.clear()
            self._batch = None
        elif isinstance(event, BatchEvent) and event.stage == "train":
            self._number += 1
            self._drawn = self._number if self._has_updated else None
            self._has_updated = False


class ShortUpdates:
    """Updates that lack something, such as the last of an epoch: a single one does no harm.

    Each is kept until the next iteration shows whether that is short, too. Other updates of the
    same iteration prove nothing.
    """

    def __init__(self) -> None:
        self._updates = UpdateTracker()
        self._waiting: dict[int, tuple[Example, Update]] = {}

    def observe(self, event: Event) -> None:
        """Enter an event, before it is judged."""
        self._updates.observe(event)
        if isinstance(event, StepEvent) and not event.recorded:
            self._waiting.clear()  # what follows is not the next step

    def add_short(self, index: int, example: Example) -> Examples:
        """The last update is short for this claim. Return the example that counts now."""
        now, waiting = self._updates.last, self._waiting.get(index)
        if waiting is not None and now.is_with(waiting[1]):
            return ()
        self._waiting[index] = example, now
        return () if waiting is None else ((index, waiting[0]),)

    def clear_short(self, index: int) -> None:
        """The last update is not short for this claim."""
        waiting = self._waiting.get(index)
        if waiting is not None and not self._updates.last.is_with(waiting[1]):
            del self._waiting[index]
