"""The inputs of models in training and in evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from traincheck.schema.observations.base import Observation


@dataclass(frozen=True, slots=True)
class ModelInputs(Observation):
    """A model is called in training mode with grad, or in evaluation mode without.

    Attributes:
        model: its name.
        training: whether it is in training mode.
        inputs: summaries of its first inputs in floating point, with numbers, by name.
    """

    text: ClassVar[str] = "given"
    need: ClassVar[str] = "input@given"
    instrument: ClassVar[str] = "modules"

    model: str
    training: bool
    inputs: Mapping[str, Any]
