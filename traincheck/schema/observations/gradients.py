"""Gradients and weights that something else than backward() and an optimizer has written."""

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


@dataclass(frozen=True, slots=True)
class DifferingSegment:
    """A checkpointed segment whose second pass gives other values.

    Attributes:
        function: that was checkpointed.
        where: ``file:line`` that called ``checkpoint``.
        reentrant: the mode.
        preserves_rng: whether random states are restored for the second pass.
        share: of the compared elements that differ, at most, in (0, 1].
    """

    function: str
    where: str | None
    reentrant: bool
    preserves_rng: bool
    share: float


@dataclass(frozen=True, slots=True)
class Recomputation(Observation):
    """Segments of `torch.utils.checkpoint` were recomputed in a step, and compared.

    Attributes:
        segments: how many were compared.
        differing: the first whose values differ, each with its `function`, `where` it is
            checkpointed, `reentrant`, `preserves_rng`, and the `share` of elements that differ.
    """

    text: ClassVar[str] = "recomputed"
    need: ClassVar[str] = "segment@recomputation"
    instrument: ClassVar[str] = "autograd"

    segments: int
    differing: tuple[DifferingSegment, ...]


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
