"""The weights that a model is evaluated with, and those that evaluation writes to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from traincheck.schema.observations.base import Observation


@dataclass(frozen=True, slots=True)
class EvalWeights(Observation):
    """A model is called without grad after training has begun.

    Attributes:
        model: its name.
        values: fingerprints of its first trained parameters, by name.
    """

    text: ClassVar[str] = "evaluated"
    need: ClassVar[str] = "parameter@evaluation"
    instrument: ClassVar[str] = "modules"

    model: str
    values: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class EvalWrites(Observation):
    """Each forward pass of a model in evaluation mode changes parameters.

    Attributes:
        model: its name.
        names: the first of these parameters.
        parameters: how many there are.
    """

    text: ClassVar[str] = "evaluation wrote"
    need: ClassVar[str] = "parameter@evaluation"
    instrument: ClassVar[str] = "modules"

    model: str
    names: tuple[str, ...]
    parameters: int = 0
