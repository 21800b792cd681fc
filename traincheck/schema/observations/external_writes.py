"""Parameters that are not as their optimizer left them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from traincheck.schema.observations.base import Observation


@dataclass(frozen=True, slots=True)
class ExternalWrites(Observation):
    """An optimizer steps, and its parameters are compared with those that its last step left.

    Attributes:
        owner: id of the optimizer.
        names: the first of those that differ.
        parameters: how many differ.
    """

    text: ClassVar[str] = "parameters between steps"
    need: ClassVar[str] = "parameter@between"
    instrument: ClassVar[str] = "optimizers"

    owner: str
    names: tuple[str, ...]
    parameters: int = 0
