"""Origins of values: loads and their first updates, state of optimizers, rows of embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from traincheck.schema.observations.base import Observation


@dataclass(frozen=True, slots=True)
class FollowedValue:
    """One parameter from a load to the second update after it, as L2 norms of differences.

    Attributes:
        jump: between the values before the load and the loaded ones.
        moved: between the loaded values and those after the first update.
        back: between the values before the load and those after the first update.
        later: between the values after the first update and those after the second.
    """

    jump: float
    moved: float
    back: float
    later: float


@dataclass(frozen=True, slots=True)
class LoadFollowed(Observation):
    """A load changed parameters, the model was trained with them, and two updates have followed.

    Distances are those of samples of at most 4096 elements of a parameter.

    Attributes:
        model: its path.
        where: line that called load_state_dict.
        step: of the first update.
        parameters: how many the load changed.
        values: by name, for those that the load and the first update changed.
    """

    text: ClassVar[str] = "load followed"
    need: ClassVar[str] = "parameter@load"
    instrument: ClassVar[str] = "checkpoint"

    model: str
    where: str | None
    step: int
    parameters: int
    values: Mapping[str, FollowedValue]
