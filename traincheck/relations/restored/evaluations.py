"""The weights that models are evaluated with, and whether evaluation changes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field

from traincheck.relations.restored.fact import EVALUATED, LEFT, CheckpointFact
from traincheck.schema.events import (
    MarkEvent,
    OptimizerEvent,
    StepEvent,
)
from traincheck.schema.observations.base import Observation
from traincheck.schema.observations.models import EvalWeights, EvalWrites
from traincheck.schema.observations.reading import observed

_MOST_NAMES = 8  # parameters of one evaluation that count as examples

_EVALUATIONS: tuple[type[Observation], ...] = (EvalWeights, EvalWrites)


@dataclass(slots=True)
class Evaluations:
    """Follows the evaluations of one process."""

    # Of this step, by model: the mark, and its number of values
    _seen: dict[str, tuple[MarkEvent, int]] = field(default_factory=dict)
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
        found = observed(event, *_EVALUATIONS)
        if isinstance(found, EvalWeights):
            model, values = found.model, found.values
            self._seen[model] = event, len(values)
            known = (values.keys() & began.keys()) - fresh
            has_moved = any(values[name] != began[name] for name in known)
            was_first = model in self._first
            self._first.discard(model)
            if known and not has_moved:
                self._first.add(model)
            if known and (has_moved or was_first):  # a first update may have a rate of zero
                weight = min(_MOST_NAMES, len(known))
                yield CheckpointFact((EVALUATED, model), has_moved, weight, model, event, (event,))
        elif isinstance(found, EvalWrites) and found.names:
            self._seen.pop(found.model, None)
            yield CheckpointFact((LEFT, found.model), False, 1, found.names[0], event, (event,))

    def _left(self) -> Iterator[CheckpointFact]:
        """The step of these evaluations has ended: nothing was written."""
        for model, (event, count) in self._seen.items():
            weight = min(_MOST_NAMES, count)
            yield CheckpointFact((LEFT, model), True, weight, model, event, (event,))
        self._seen.clear()
