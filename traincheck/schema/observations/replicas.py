"""How parameters are placed on ranks, and what the ranks that hold the same values hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from traincheck.schema.observations.base import Observation


@dataclass(frozen=True, slots=True)
class Layout:
    """A mesh of ranks and the placements of a tensor on it.

    Attributes:
        dims: names of the dimensions of the mesh; empty texts if they have none.
        sizes: number of ranks along each.
        placements: for each, ``replicate``, ``shard 0`` (the dimension of the tensor), or
            ``partial``.
        replicas: the ranks that hold the same part as this one, itself included.
    """

    dims: tuple[str, ...]
    sizes: tuple[int, ...]
    placements: tuple[str, ...]
    replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReductionGroup:
    """A wrapper that reduces gradients over ranks.

    Attributes:
        model: name of the wrapped model.
        kind: its class, such as ``FullyShardedDataParallel``.
        strategy: of sharding, such as ``NO_SHARD``; empty if it has none.
        ranks: over which it reduces gradients.
    """

    model: str
    kind: str
    strategy: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ParameterPlacement(Observation):
    """How the parameters of this process are placed on ranks; again when that changes.

    Attributes:
        world: number of ranks.
        layouts: of the parameters that are distributed tensors, each with the names of the
            dimensions of its mesh `dims`, their `sizes`, `placements`, and the ranks `replicas`
            that hold the same part.
        parameters: name of a distributed parameter -> index of its layout.
        groups: of wrappers, each with the name of its `model`, its `kind`, `strategy`, and the
            `ranks` over which it reduces gradients.
        alone: trained parameters whose gradients are reduced over this rank alone.
        others: number of other trained parameters.
    """

    text: ClassVar[str] = "placed"
    need: ClassVar[str] = "parameter@replicas"
    instrument: ClassVar[str] = "distributed"

    world: int
    layouts: tuple[Layout, ...] = ()
    parameters: Mapping[str, int] = field(default_factory=dict)
    groups: tuple[ReductionGroup, ...] = ()
    alone: tuple[str, ...] = ()
    others: int = 0


@dataclass(frozen=True, slots=True)
class LocalValues:
    """The values of one tensor on this rank.

    Attributes:
        name: of the parameter.
        role: ``parameter`` or ``gradient``.
        dtype: of the elements.
        norm: of the local part.
        sums: sixteen sums of its elements with signs. The sums of a difference of two tensors are
            the differences of their sums, and have about its norm.
    """

    name: str
    role: str
    dtype: str
    norm: float
    sums: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ReplicaValues(Observation):
    """A step ends: the values of parameters that other ranks hold as well, and their gradients.

    Attributes:
        values: the first 64 tensors, each with its `name`, `role`, `dtype`, the `norm` of this
            rank's part, and sixteen signed `sums` of its elements.
    """

    text: ClassVar[str] = "replicas"
    need: ClassVar[str] = "parameter@replicas"
    instrument: ClassVar[str] = "distributed"

    values: tuple[LocalValues, ...]
