"""A process: its settings, the source files of its program, and its place among the ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from traincheck.schema.observations.base import Observation


@dataclass(frozen=True, slots=True)
class ProcessFacts(Observation):
    """Settings and versions of the process: when it starts, and again when they have changed.

    Recorded in the view "diff" only. The last record before an event holds for this event.

    Attributes:
        threads: of one operation of torch (`torch.get_num_threads`).
        interop_threads: of several operations at once.
        flags: settings of torch by name: `deterministic`, `deterministic_warn_only`,
            `cudnn.deterministic`, `cudnn.benchmark`, `cudnn.enabled`, `mkldnn.enabled`,
            `float32_matmul_precision`, `tf32.matmul`, `tf32.cudnn`, `default_dtype`,
            `sdp.flash`, `sdp.mem_efficient`, `sdp.math`, `flush_denormal`. Without those that
            this torch does not have.
        cpu_capability: the vector instructions that torch uses, such as `AVX512`.
        machine: of the processor, such as `x86_64`.
        processors: how many this process may use.
        gpus: names of the devices that the process uses.
        hash_seed: PYTHONHASHSEED, or null if it is not set: then sets of texts have another order
            in each process.
        versions: of Python, of torch and its libraries, and of the loaded packages, by name.
        commit: of the git checkout that holds the program; empty if it is in none.
        environment: variables of the allow-list of the manifest that are set.
    """

    text: ClassVar[str] = "process facts"
    need: ClassVar[str] = "process@facts"
    instrument: ClassVar[str] = "comparison"
    is_for_checks: ClassVar[bool] = False

    threads: int
    interop_threads: int = 0
    flags: Mapping[str, Any] = field(default_factory=dict)
    cpu_capability: str = ""
    machine: str = ""
    processors: int = 0
    gpus: tuple[str, ...] = ()
    hash_seed: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    commit: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sources(Observation):
    """Source files of the program that this process has loaded since the last such record.

    The run directory holds a copy of each: `sources/<copy>`, readable by its owner alone, in which
    texts that look like secrets are masked. Files of installed packages are left out. Not recorded
    with `--no-source`.

    Attributes:
        script: path of the file that runs as `__main__`; empty if there is none.
        files: name of the copy by path. Copies with one name are the same.
        changed: paths of files that were written after the process had started, so that the copy
            may not be what runs.
        left_out: how many further files have no copy: too many, too large, or not readable.
    """

    text: ClassVar[str] = "sources"
    instrument: ClassVar[str] = "transforms"
    is_for_checks: ClassVar[bool] = False

    script: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    changed: tuple[str, ...] = ()
    left_out: int = 0


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
