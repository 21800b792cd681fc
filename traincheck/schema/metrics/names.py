"""Names of metrics, and how their numbers combine over calls, micro-batches and ranks."""

from __future__ import annotations

# Sums of one part of a tensor that several ranks hold together; "shard/2": two ranks hold it.
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


def sharded(copies: int) -> str:
    """How sums combine of one part of a tensor, of which so many ranks hold a copy."""
    return SHARDED if copies == 1 else f"{SHARDED}/{copies}"


def copies_of(name: str, combine: str, processes: int) -> int:
    """How often the elements under this name are among the numbers of so many processes."""
    how, _, copies = combine.partition("/")
    if how == SHARDED:
        return int(copies) if copies.isdecimal() else 1
    return processes if subject_of(name).removesuffix("_difference") in REPLICATED else 1
