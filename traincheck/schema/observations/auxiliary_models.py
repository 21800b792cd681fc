"""Models that serve the training of another: teachers, averages of weights, target networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from traincheck.schema.observations.base import Observation


@dataclass(frozen=True, slots=True)
class AuxiliaryCall(Observation):
    """A model that no optimizer holds is called without grad while another one is trained."""

    need: ClassVar[str] = "parameter@untrained"
    instrument: ClassVar[str] = "modules"
    keys: ClassVar[Mapping[str, str]] = {"model_class": "class"}

    model: str
    model_class: str = ""
    weights: str = ""


@dataclass(frozen=True, slots=True)
class AuxiliaryTraining(AuxiliaryCall):
    """A model that no optimizer holds is called without grad in training mode.

    Attributes:
        model: its path.
        model_class: of its outermost module.
        weights: a text that differs once any of the weights is written to.
    """

    text: ClassVar[str] = "untrained"


@dataclass(frozen=True, slots=True)
class AuxiliaryEval(AuxiliaryCall):
    """A model that no optimizer holds is called without grad in evaluation mode.

    Attributes:
        model: its path.
        model_class: of its outermost module.
        weights: a text that differs once any of the weights is written to.
        statistics: "copied" where batch norms of a plain mean of weights are those of the last
            model in it.
    """

    text: ClassVar[str] = "serves"
    sparse: ClassVar[frozenset[str]] = frozenset({"statistics"})

    statistics: str | None = None


@dataclass(frozen=True, slots=True)
class AuxiliaryInitialNorms(AuxiliaryEval):
    """A model that no optimizer holds is evaluated, and its batch norms never saw a batch.

    Attributes:
        model: its path.
        model_class: of its outermost module.
        weights: a text that differs once any of the weights is written to.
        statistics: "copied" where batch norms of a plain mean of weights are those of the last
            model in it.
    """

    text: ClassVar[str] = "initial norm statistics"
