"""The terms of a loss: what is behind the tensor that a backward pass starts from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

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
