"""Auxiliary models in the training of another model, and how long their weights stay the same.

Examples are target networks, averages of weights, and teachers that follow their student. They are
not scanned in every step, so changes are known some steps late.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard

from traincheck.schema.apis import Marks
from traincheck.schema.claims import Needs
from traincheck.schema.events import Event, MarkEvent

AUXILIARY = Needs(states=frozenset({"parameter@untrained"}), kinds=frozenset({"mark"}))
_LOOKS = frozenset({Marks.NORMS, Marks.SERVES, Marks.UNTRAINED})


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
    weights: object
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

    def look(self, event: MarkEvent) -> AuxiliaryModel:
        """Enter a scan of one model."""
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
    """Whether the event is the call of such a model."""
    return isinstance(event, MarkEvent) and event.text in _LOOKS
