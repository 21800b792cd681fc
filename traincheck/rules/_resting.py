"""Models that serve the training of another: for how many looks their weights stayed the same."""

from __future__ import annotations

from traincheck.rules._streak import Streak, extend
from traincheck.schema.claims import Needs
from traincheck.schema.events import MarkEvent

RESTING = Needs(states=frozenset({"parameter@untrained"}), kinds=frozenset({"mark"}))


class Resting:
    """Books only. moving: models whose weights changed since they were first looked at."""

    def __init__(self) -> None:
        self.streaks: dict[str, Streak] = {}
        self.moving: set[str] = set()
        self._weights: dict[str, str] = {}

    def enter(self, event: MarkEvent) -> None:
        """A mark with the weights of a model."""
        model, weights = event.model, str(event.data.get("weights"))
        if self._weights.setdefault(model, weights) != weights:
            self.moving.add(model)
        extend(self.streaks, model, event.step)
