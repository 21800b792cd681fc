"""Facts of a process that decide which bits its arithmetic gives, for the comparison of runs."""

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
