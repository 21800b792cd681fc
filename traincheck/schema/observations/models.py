"""Models: their layers, their inputs, and what serves or evaluates the one that trains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from traincheck.schema.observations.base import Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStructure(Observation):
    """A model is found, or its structure is another one.

    Attributes:
        name: of the model.
        model_class: of its outermost module.
        dtypes: elements of its parameters, by dtype.
        devices: elements of all its tensors, by device.
        cuda: whether a GPU is there.
        tokens: ids of special tokens, by name.
        strided: the first parameters whose elements do not follow each other in memory.
        modules: classes, sizes and settings of its modules by path, in the order of registration.
    """

    text: ClassVar[str] = "model"
    instrument: ClassVar[str] = "modules"
    keys: ClassVar[Mapping[str, str]] = {"model_class": "class"}
    sparse: ClassVar[frozenset[str]] = frozenset({"strided"})

    name: str
    model_class: str = ""
    dtypes: Mapping[str, int] = field(default_factory=dict)
    devices: Mapping[str, int] = field(default_factory=dict)
    cuda: bool = False
    tokens: Mapping[str, Any] = field(default_factory=dict)
    strided: tuple[str, ...] = ()
    modules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


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


@dataclass(frozen=True, slots=True)
class EvalEffects(Observation):
    """A model was called twice in evaluation mode without grad, and nothing was trained meanwhile.

    Attributes:
        model: its name.
        buffers: how many it has.
        written: how many of them were written to, or replaced, from the first to the second call.
        names: the first of these.
        drawn: the generators whose states changed meanwhile: `torch`, `python`, `numpy`.
    """

    text: ClassVar[str] = "evaluation effects"
    need: ClassVar[str] = "parameter@evaluation"
    instrument: ClassVar[str] = "modules"

    model: str
    buffers: int
    written: int
    names: tuple[str, ...]
    drawn: tuple[str, ...]
