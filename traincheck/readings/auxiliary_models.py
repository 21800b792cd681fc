"""Auxiliary models in the training of another model, and how long their weights stay the same.

Examples are target networks, averages of weights, and teachers that follow their student. They are
not scanned in every step, so changes are known some steps late.
"""

from __future__ import annotations

from dataclasses import dataclass

from traincheck.schema.events import Event
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.models import (
    AuxiliaryCall,
    AuxiliaryEval,
    AuxiliaryInitialNorms,
    AuxiliaryTraining,
)
from traincheck.schema.observations.reading import observed

_CALLS = (AuxiliaryTraining, AuxiliaryEval, AuxiliaryInitialNorms)
AUXILIARY = needs_of(*_CALLS)


@dataclass(slots=True)
class AuxiliaryModel:
    """The state of one model at its last scan.

    Attributes:
        weights: their digest.
        first: step of the first scan.
        looks: number of scans.
        since: step of the last scan with changed weights, or of the first scan.
        moved: whether this scan found changed weights.
        rest: steps since the previous change.
        has_moved: whether the weights have ever changed.
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
    """The auxiliary models of one process, by name."""

    def __init__(self) -> None:
        self.by_name: dict[str, AuxiliaryModel] = {}

    def look(self, call: AuxiliaryCall, at: int | None) -> AuxiliaryModel:
        """Enter a scan of one model. at: the step of the look."""
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
