"""The weights that models are evaluated with, and whether evaluation changes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field

from traincheck.relations.restored.fact import EVALUATED, LEFT, CheckpointFact
from traincheck.schema.apis import Marks
from traincheck.schema.events import (
    MarkEvent,
    OptimizerEvent,
    StepEvent,
)

_MOST_NAMES = 8  # parameters of one evaluation that count as examples


@dataclass(slots=True)
class Evaluations:
    """Follows the evaluations of one process."""

    _seen: dict[str, MarkEvent] = field(default_factory=dict)  # of this step, by model
    _first: set[str] = field(
        default_factory=set
    )  # models that were evaluated with their initial weights

    def observe(
        self,
        event: MarkEvent | OptimizerEvent | StepEvent,
        began: Mapping[str, str],
        fresh: Set[str],
    ) -> Iterator[CheckpointFact]:
        """Enter an event. began: initial fingerprints; fresh: parameters without an update."""
        if isinstance(event, StepEvent):
            yield from self._left()
        elif isinstance(event, OptimizerEvent):
            if event.change == "created":  # a fold or trial may start with the same weights
                self._first.clear()
        else:
            yield from self._mark(event, began, fresh)

    def _mark(
        self, event: MarkEvent, began: Mapping[str, str], fresh: Set[str]
    ) -> Iterator[CheckpointFact]:
        model, values, names = event.model, event.values, event.names
        if event.text == Marks.EVALUATED:
            self._seen[model] = event
            known = (values.keys() & began.keys()) - fresh
            has_moved = any(values[name] != began[name] for name in known)
            was_first = model in self._first
            self._first.discard(model)
            if known and not has_moved:
                self._first.add(model)
            if known and (has_moved or was_first):  # a first update may have a rate of zero
                weight = min(_MOST_NAMES, len(known))
                yield CheckpointFact((EVALUATED, model), has_moved, weight, model, event, (event,))
        elif event.text == Marks.EVALUATION_WROTE and names:
            self._seen.pop(model, None)
            yield CheckpointFact((LEFT, model), False, 1, names[0], event, (event,))

    def _left(self) -> Iterator[CheckpointFact]:
        """The step of these evaluations has ended: nothing was written."""
        for model, event in self._seen.items():
            weight = min(_MOST_NAMES, len(event.values))
            yield CheckpointFact((LEFT, model), True, weight, model, event, (event,))
        self._seen.clear()
