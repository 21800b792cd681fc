"""Elementwise operations of a loss that broadcast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from traincheck.schema.observations.base import Observation

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
