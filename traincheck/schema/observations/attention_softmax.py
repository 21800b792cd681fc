"""Over which dim attention is normalized, and over which it is summed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from traincheck.schema.observations.base import Observation


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """Weights of attention in the graph of a loss.

    Attributes:
        shape: of the result of softmax.
        normalized: the dim that softmax runs over.
        kept: the dim that the product with the values keeps.
        summed: the dim that this product sums over.
    """

    shape: tuple[int, ...]
    normalized: int
    kept: int
    summed: int

    def __post_init__(self) -> None:
        if not all(0 <= dim < len(self.shape) for dim in (self.normalized, self.kept, self.summed)):
            raise ValueError(f"{list(self.shape)} does not have these dims")


@dataclass(frozen=True, slots=True)
class AttentionSoftmax(Observation):
    """Weights of attention that are found in the graph of a loss before its backward pass.

    Attributes:
        weights: objects with their `shape`, the dim that softmax `normalized`, and which of their
            dims the product with the values `kept` and `summed`.
    """

    text: ClassVar[str] = "attention"
    need: ClassVar[str] = "loss@attention"
    instrument: ClassVar[str] = "autograd"

    weights: tuple[AttentionWeights, ...]
