"""The quantities of a run, one row each: their bands, and the texts of findings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from traincheck.readings.reading import Row
from traincheck.relations.scales.schedules import (
    GRADIENT,
    LENGTH,
    LOSS,
    RATE,
    FirstSizes,
    Schedules,
)
from traincheck.schema.claims import Needs, sampled
from traincheck.schema.findings import Symptom, Topic
from traincheck.schema.torch_api import Families

LOW, HIGH = "low", "high"
_BOUNDS = {LOW: "at least", HIGH: "at most"}
_DIGITS = 3  # significant ones of a limit
_SMALL = 0.05  # of the peak: rates below that are the end of a schedule, whatever they are
_KINDS = frozenset({"batch", "checkpoint", "mark", "step"})
_SIZES = Needs(calls=frozenset({Families.BACKWARD, Families.MODULE, Families.SCALE}), kinds=_KINDS)
_SIZES |= Needs(states=frozenset({"parameter@new"}))
_GRADIENTS = Needs(
    states=sampled("gradient@backward", "gradient@zero_grad"), stats=sampled("gradient")
)
_SCHEDULES = frozenset({Families.SCHEDULER_CREATED, Families.SCHEDULER_STEP})


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity(Row):
    """A number that a run has once. A reading has several of the run, whose spread widens the band.

    Attributes:
        factor: the limits are that much farther than the smallest and largest reading.
        margin: and at least that much farther.
        varies: the factor is at least the largest reading divided by the smallest one.
        most: the largest possible value.
        only: if given, the one value that is claimed; others are settings.
        text: what is limited, with ``{of}``.
    """

    factor: float
    text: str
    margin: float = 0.0
    varies: bool = False
    most: float = math.inf
    only: float | None = None

    def claimed(self, values: Iterable[Any]) -> Iterable[dict[str, Any]]:
        """LOW, HIGH, both, or neither."""
        known = [value for some in values for value in some]
        low, high = min(known), max(known)
        if self.only is not None and max(high / self.only, self.only / low) > self.factor:
            return ()
        factor = max(self.factor, high / low) if self.varies else self.factor
        least = min(low / factor, low - self.margin)
        largest = max(high * factor, high + self.margin)
        found = [{LOW: _rounded(least, math.floor)}] if least > 0 else []
        return found + ([{HIGH: _rounded(largest, math.ceil)}] if largest < self.most else [])

    def is_known(self, params: Mapping[str, Any]) -> bool:
        return (LOW in params) != (HIGH in params)

    def allows(self, params: Mapping[str, Any], value: Any) -> bool:
        """A run breaks a limit if all its readings do."""
        low, high = min(value), max(value)
        return bool(high >= params.get(LOW, high) and low <= params.get(HIGH, low))

    def says(self, params: Mapping[str, Any]) -> str:
        bound = LOW if LOW in params else HIGH
        text = self.text.format(of=params.get("of", ""))
        return f"{text} {_BOUNDS[bound]} {params[bound]:g}"


def _rounded(value: float, to_whole: Callable[[float], int]) -> float:
    """The value with three digits, rounded down or up."""
    digit = 10.0 ** (math.floor(math.log10(value)) + 1 - _DIGITS)
    return float(f"{to_whole(value / digit) * digit:.{_DIGITS}g}")


_ALL = (
    Quantity(
        reader=FirstSizes,
        name=LOSS,
        needs=_SIZES,
        factor=3.0,
        varies=True,
        text="the losses passed to backward() before the first update sum to",
        headline="The loss begins at another scale than in the reference runs",
        cause=(
            "The loss may be a sum instead of a mean (or the reverse), or be divided by "
            "another count: of micro-batches, labels or ranks."
        ),
        fix='Compare reduction= and the divisor of the loss; use reduction="mean", and divide by '
        "the number of micro-batches once.",
        symptom=Symptom.WRONG_VALUE,
        topic=Topic.MAGNITUDE,
    ),
    Quantity(
        reader=FirstSizes,
        name=GRADIENT,
        needs=_SIZES | _GRADIENTS,
        factor=3.0,
        varies=True,
        text="the norm of the gradients of the first update is",
        headline="Gradients begin at another scale than in the reference runs",
        cause=(
            "Gradients may not be divided by the number of micro-batches or ranks, or be "
            "divided twice, or the loss may be reduced in another way."
        ),
        fix="Divide the loss by the number of micro-batches once, and not the gradients again.",
        symptom=Symptom.WRONG_VALUE,  # as the loss, which explains it
        topic=Topic.MAGNITUDE,
        severity="info",
    ),
    Quantity(
        reader=Schedules,
        name=RATE,
        needs=Needs(calls=_SCHEDULES, kinds=_KINDS),
        factor=3.0,
        margin=_SMALL,
        most=1.0,
        text="the last learning rate of {of}, divided by the largest one, is",
        headline="The learning rate ends elsewhere on its schedule than in the reference runs",
        cause=(
            "The schedule may be built for another number of steps than there are updates, or "
            "scheduler.step() called in another unit."
        ),
        fix="Build the schedule for the number of optimizer steps (batches divided by "
        "accumulation steps), and call scheduler.step() after each.",
        symptom=Symptom.SCHEDULE,
        topic=Topic.SCHEDULER,
    ),
    Quantity(
        reader=Schedules,
        name=LENGTH,
        needs=Needs(calls=_SCHEDULES, kinds=_KINDS),
        factor=1.1,
        only=1.0,
        text="the length of the schedule of {of}, divided by the number of updates, is",
        headline="The schedule is built for another number of updates than there are",
        cause=(
            "The length of the schedule may count micro-batches or epochs, with "
            "scheduler.step() after each update."
        ),
        fix="Build the schedule for the number of updates: epochs * len(loader) // "
        "accumulation_steps.",
        symptom=Symptom.SCHEDULE,
        topic=Topic.SCHEDULER,
    ),
)
QUANTITIES: Mapping[str, Quantity] = {each.name: each for each in _ALL}
