"""Gradients that something other than a backward pass left, wrote or replaced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from traincheck.schema.observations.base import Observation


@dataclass(frozen=True, slots=True)
class UnclearedGradients(Observation):
    """A recorded step follows one that was not, and finds the gradients that were applied there.

    Attributes:
        owners: ids of the optimizers that applied them.
        names: of those that are not cleared when a backward pass begins.
    """

    text: ClassVar[str] = "gradients kept"
    need: ClassVar[str] = "gradient@backward"
    instrument: ClassVar[str] = "autograd"

    owners: tuple[str, ...]
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WrittenGradients(Observation):
    """Gradients are others when a backward pass begins than when the last one ended.

    Attributes:
        after: span of the backward pass that begins.
        names: of these gradients.
        norms: of each, when the pass begins; empty if one of them has none.
    """

    text: ClassVar[str] = "gradients written"
    need: ClassVar[str] = "gradient@backward"
    instrument: ClassVar[str] = "autograd"
    sparse: ClassVar[frozenset[str]] = frozenset({"norms"})

    after: int
    names: tuple[str, ...]
    norms: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplacedGradients(Observation):
    """An optimizer steps with gradients other than those that the last scan found.

    Attributes:
        owner: id of the optimizer.
    """

    text: ClassVar[str] = "gradients replaced"
    need: ClassVar[str] = "gradient@backward"
    instrument: ClassVar[str] = "optimizers"

    owner: str
