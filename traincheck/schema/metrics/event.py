"""The event of measured steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from traincheck.schema.record import EventBase
from traincheck.schema.values import Value


class MetricsEvent(EventBase, frozen=True, kw_only=True, tag="metrics"):
    """The metrics of one step of a monitored process, or of the evaluation within it.

    Names stand in the first event of the process that has them, under a number that later events
    use.

    Attributes:
        names: number -> name, of those that no earlier event of this process has.
        combine: number -> how its values combine over calls and ranks, where it is not "mean":
            "sum", "max", "min", "last"; "shard" where sums are of one part of a tensor, "shard/2"
            where two ranks have a copy of that part.
        sums: for each tensor its number, then count, sum, squares, minimum, maximum, zeros,
            nonfinite, absolutes, cubes, fourths, mean, m2, m3, m4 of its elements; null where it
            was not taken, and left out at the end. m2 is the sum of squares of the deviations from
            the mean, m3 and m4 those of third and fourth powers. Older traces have raw sums of
            powers instead: cubes and fourths.
        values: for each metric its number, its weight and its value; of a mean the weighted sum.
            null stands for NaN, text for infinities.
        skipped: number -> why a tensor was not measured, when this is first seen.
        failed: metrics that failed, with ``metric``, ``on`` and ``error``; not taken from then on.
        evaluates: whether it is about forwards without gradients.
    """

    kind: ClassVar[Literal["metrics"]] = "metrics"
    names: Mapping[str, str] = {}
    combine: Mapping[str, str] = {}
    sums: Sequence[Sequence[float | int | None]] = ()
    values: Sequence[Sequence[float | int | str | None]] = ()
    skipped: Mapping[str, str] = {}
    failed: Sequence[Mapping[str, Value]] = ()
    evaluates: bool = False
