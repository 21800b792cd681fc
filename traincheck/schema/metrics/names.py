"""Names of metrics, and how their numbers combine over calls, micro-batches and ranks."""

from __future__ import annotations

# Sums of one part of a tensor that several ranks hold together.
SHARDED = "shard"
# Of these tensors every data parallel rank has the same; only parts of them are added.
REPLICATED = frozenset(
    {"parameter", "gradient", "gradient_before_clip", "update", "optimizer_state"}
)


class Combine:
    """How values of one metric combine. A mean is stored as the weighted sum."""

    MEAN = "mean"
    SUM = "sum"
    MAX = "max"
    MIN = "min"
    LAST = "last"
    ALL = frozenset({MEAN, SUM, MAX, MIN, LAST})

    @staticmethod
    def add(how: str, one: float, other: float) -> float:
        """Two stored values as one."""
        if how in (Combine.MEAN, Combine.SUM):
            return one + other
        if how == Combine.MAX:
            return max(one, other)
        return min(one, other) if how == Combine.MIN else other


def subject_of(name: str) -> str:
    """The kind of tensors that a metric is of: ``activation`` of ``activation/Net.fc1``."""
    return name.partition("/")[0]


def is_replicated(name: str, combine: str) -> bool:
    """Whether ranks have equal numbers under this name, so that they are not added."""
    return combine != SHARDED and subject_of(name).removesuffix("_difference") in REPLICATED
