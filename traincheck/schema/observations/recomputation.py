"""Whether what is recomputed in a backward pass is what the forward pass has computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from traincheck.schema.observations.base import Observation


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
