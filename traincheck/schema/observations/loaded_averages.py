"""Averages of weights in the first steps after they were loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from traincheck.schema.observations.base import Observation


@dataclass(frozen=True, slots=True)
class LoadedAverage(Observation):
    """A model that no optimizer holds has changed soon after it was loaded.

    Attributes:
        model: its path.
        of: the trained model with the same structure.
        parameters: how many it has.
        equal: whether it equals the trained model; null if that was written to by hand.
    """

    text: ClassVar[str] = "loaded model changed"
    need: ClassVar[str] = "average@loaded"
    instrument: ClassVar[str] = "checkpoint"

    model: str
    of: str
    parameters: int
    equal: bool | None
