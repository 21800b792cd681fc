"""When a difference between ranks is more than rounding."""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot
from typing import ClassVar

from traincheck.readings.distributed.replicas import REPLICA_VALUES, Distance, Replicas
from traincheck.readings.provider import Fact, Facts
from traincheck.rules.base.rule import BuiltInRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import Event, StepEvent
from traincheck.schema.findings import Violation

_ROUNDING, _ROUNDING_OF_HALF = 1e-6, 4e-3  # of the norm
_HALF = ("float16", "bfloat16")
_SHARE = 0.02  # of the movement: kernels that add in another order differ far less
PROOF = 2  # comparisons


def differs(some: Sequence[Distance]) -> bool:
    """Whether ranks differ in these tensors together by more than rounding explains.

    The difference is compared with how far the tensors moved since the last comparison.
    """
    is_half = any(one.dtype in _HALF for one in some)
    rounding = _ROUNDING_OF_HALF if is_half else _ROUNDING
    norm, apart = hypot(*(one.norm for one in some)), hypot(*(one.apart for one in some))
    moved = hypot(*(one.moved or 0.0 for one in some))
    return apart > max(rounding * norm, _SHARE * moved)


class ReplicaRule(BuiltInRule):
    """Judges what the comparisons of ranks show."""

    uses: ClassVar[Sequence[type[Fact]]] = (Replicas,)
    observes: ClassVar[Needs] = Needs(kinds=frozenset({"step"}))
    needs = REPLICA_VALUES
    scope = "run"

    def bind(self, facts: Facts) -> None:
        self.replicas = facts.of(Replicas)

    def observe(self, event: Event) -> Sequence[Violation]:
        if not isinstance(event, StepEvent) or not self.replicas.ready or self.replicas.is_local:
            return ()
        return self.judge(self.replicas.ready)

    def judge(self, distances: Sequence[Distance]) -> Sequence[Violation]:
        """Return the violations that a comparison proves, together with earlier ones."""
        raise NotImplementedError
