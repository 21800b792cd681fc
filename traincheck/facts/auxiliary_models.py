"""Models that serve the training of another, and for how long their weights stay the same.

Target networks, averages of weights, teachers that follow their student. They are not looked at in
every step, so what is seen is late by some steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard

from traincheck.schema.claims import Needs
from traincheck.schema.events import Event, MarkEvent
from traincheck.schema.marks import Marks

AUXILIARY = Needs(states=frozenset({"parameter@untrained"}), kinds=frozenset({"mark"}))
_LOOKS = frozenset({Marks.NORMS, Marks.SERVES, Marks.UNTRAINED})


@dataclass(slots=True)
class AuxiliaryModel:
    """What is known of one by its last look.

    weights: their digest. first: step of the first look; looks: how many there were. since: step in
    which the weights were seen to be others than before, or of the first look. moved: whether that
    is this look; rest: steps since the time before. has_moved: whether they ever were others.
    """

    name: str
    weights: object
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

    def look(self, event: MarkEvent) -> AuxiliaryModel:
        """Enter a look at one."""
        weights, step = event.data.get("weights"), event.step or 0
        model = self.by_name.get(event.model)
        if model is None:
            model = AuxiliaryModel(event.model, weights, event.step, step)
            self.by_name[event.model] = model
        model.looks += 1
        model.moved, model.rest = model.weights != weights, step - model.since
        if model.moved:
            model.weights, model.since, model.has_moved = weights, step, True
        return model


def is_look(event: Event) -> TypeGuard[MarkEvent]:
    """Whether the event tells that such a model was called."""
    return isinstance(event, MarkEvent) and event.text in _LOOKS
