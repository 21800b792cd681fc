"""Models that serve the training of another, and for how long their weights stay the same.

Target networks, averages of weights, teachers that follow their student. They are not looked at in
every step, so what is seen is late by some steps.
"""

from __future__ import annotations

from dataclasses import dataclass

from traincheck.schema.events import Event
from traincheck.schema.observations.auxiliary_models import (
    AuxiliaryCall,
    AuxiliaryEval,
    AuxiliaryInitialNorms,
    AuxiliaryTraining,
)
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.reading import observed

_CALLS = (AuxiliaryTraining, AuxiliaryEval, AuxiliaryInitialNorms)
AUXILIARY = needs_of(*_CALLS)


@dataclass(slots=True)
class AuxiliaryModel:
    """What is known of one by its last look.

    weights: their digest. first: step of the first look; looks: how many there were. since: step in
    which the weights were seen to be others than before, or of the first look. moved: whether that
    is this look; rest: steps since the time before. has_moved: whether they ever were others.
    """

    name: str
    weights: str
    first: int | None
    since: int
    looks: int = 0
    moved: bool = False
    rest: int = 0
    has_moved: bool = False


class AuxiliaryModels:
    """Those of one process, by name."""

    def __init__(self) -> None:
        self.by_name: dict[str, AuxiliaryModel] = {}

    def look(self, call: AuxiliaryCall, at: int | None) -> AuxiliaryModel:
        """Enter a look at one. at: the step of the look."""
        weights, step = call.weights, at or 0
        model = self.by_name.get(call.model)
        if model is None:
            model = self.by_name[call.model] = AuxiliaryModel(call.model, weights, at, step)
        model.looks += 1
        model.moved, model.rest = model.weights != weights, step - model.since
        if model.moved:
            model.weights, model.since, model.has_moved = weights, step, True
        return model


def auxiliary_call(event: Event) -> AuxiliaryCall | None:
    """The call of such a model that the event tells of."""
    return observed(event, *_CALLS)
