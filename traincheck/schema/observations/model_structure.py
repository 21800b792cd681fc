"""The structure of a model."""

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
