"""A loss: its terms, the shapes and labels behind them, and the softmax of attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from traincheck.schema.observations.base import Observation


@dataclass(frozen=True, slots=True)
class LossTerm:
    """A term that gradients flow into.

    Attributes:
        name: of the loss function, such as `kl_div`; else of the node in the graph, such as `Mean`.
        where: the line that computed it; empty if it is no result of a loss function.
        weight: derivative of the root by the term; None if it was not read.
        elements: number of elements that it was reduced from; 0 if not known.
        weighted_by_itself: whether the root multiplies it by a curved function of itself, such as
            `(1 - exp(-loss)) ** 2`.
    """

    name: str
    where: str
    weight: float | None
    elements: int
    weighted_by_itself: bool = False


@dataclass(frozen=True, slots=True)
class ConstantTerm:
    """The result of a loss function that has no graph and is added to the root.

    Attributes:
        name: of the loss function.
        where: the line that computed it.
        weight: its factor in the sum that adds it; None if that is no plain number.
        value: of the added number.
        number: whether a plain number was added, such as `loss.item()`: then `name` is the loss
            with this value at that time, and its graph is not behind the root.
    """

    name: str
    where: str
    weight: float | None
    value: float
    number: bool = False


@dataclass(frozen=True, slots=True)
class LossTerms(Observation):
    """A backward pass began, and the terms of its root were read from the graph.

    Attributes:
        terms: objects with `name`, `where`, `weight`, `elements`, `weighted_by_itself`.
        constants: results of loss functions without a graph that are added to the root: objects
            with `name`, `where`, `weight`, `value`, `number`.
    """

    text: ClassVar[str] = "loss terms"
    need: ClassVar[str] = "loss@terms"
    instrument: ClassVar[str] = "functional"

    terms: tuple[LossTerm, ...]
    constants: tuple[ConstantTerm, ...] = ()


@dataclass(frozen=True, slots=True)
class LossSum:
    """A sum of two scalars that both have a graph.

    Attributes:
        where: the line that adds.
        trained: names of its terms that a backward pass reached.
        dropped: names of its terms that none reached.
        is_used: whether a backward pass reached the sum.
    """

    where: str
    trained: tuple[str, ...]
    dropped: tuple[str, ...]
    is_used: bool


@dataclass(frozen=True, slots=True)
class LossSums(Observation):
    """Sums of scalars with a graph, a step after they were computed.

    Attributes:
        sums: objects with `where`, the names of the `trained` and of the `dropped` terms, and
            whether a backward pass reached the sum.
        at: the step that computed them.
    """

    text: ClassVar[str] = "loss sums"
    need: ClassVar[str] = "loss@terms"
    instrument: ClassVar[str] = "functional"

    sums: tuple[LossSum, ...]
    at: int | None


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


# Name and sizes of a node of the graph. The sizes are not always known.
Source: TypeAlias = tuple[str, tuple[int, ...] | None]


@dataclass(frozen=True, slots=True)
class Broadcast:
    """One operation. Its result is larger than each tensor that it is differentiated by.

    Attributes:
        node: its name in the graph.
        shape: of its result.
        inputs: for each input the nodes that it comes from, as long as the size stays; None if no
            gradient flows there.
    """

    node: str
    shape: tuple[int, ...]
    inputs: tuple[tuple[Source, ...] | None, ...]


@dataclass(frozen=True, slots=True)
class LossBroadcast(Observation):
    """Operations of a loss that broadcast, found before its backward pass.

    Attributes:
        operations: objects with the `node`, the `shape` of its result and its `inputs`: for each
            the nodes it comes from (name, sizes), as long as the size stays, or null if no gradient
            flows there.
    """

    text: ClassVar[str] = "loss broadcasts"
    need: ClassVar[str] = "loss@broadcast"
    instrument: ClassVar[str] = "autograd"

    operations: tuple[Broadcast, ...]


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
