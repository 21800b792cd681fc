"""The positions of a batch of labels that a loss over classes is trained on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from traincheck.schema.observations.base import Observation


@dataclass(frozen=True, slots=True)
class Positions:
    """One log_softmax behind the root of a backward pass.

    Attributes:
        root: number of the backward pass in the step, from 0.
        shape: of the positions.
        trained: number of positions with a gradient.
        total: sum of the gradients of all log-probabilities: minus the weight of all positions.
        labels: number of positions whose label is not ignored; None if no labels of the batch have
            this shape.
        trained_labels: number of these with a gradient.
        trained_ignored: number of positions with a gradient whose label is ignored.
        ignored: number of positions whose label is ignored.
    """

    root: int
    shape: tuple[int, ...]
    trained: int
    total: float
    labels: int | None = None
    trained_labels: int = 0
    trained_ignored: int = 0
    ignored: int = 0


@dataclass(frozen=True, slots=True)
class LabelPositions(Observation):
    """The gradients of log-probabilities in a step, by position.

    Labels are whole-number tensors of the batch with negative elements, which are ignored, and its
    masks by name, such as `loss_mask`, which are 0 where labels are ignored.

    Attributes:
        positions: objects with the number of the `root`, the `shape` of the positions, how many are
            `trained`, the `total` of the gradients, and, if the batch has labels of this shape, the
            number of `labels`, of `trained_labels`, of `trained_ignored` and of `ignored` ones.
        compared: whether a constant, such as the result of a reference model, is subtracted from
            the log-probabilities of labels.
    """

    text: ClassVar[str] = "label positions"
    need: ClassVar[str] = "loss@positions"
    instrument: ClassVar[str] = "functional"

    positions: tuple[Positions, ...]
    compared: bool = False
