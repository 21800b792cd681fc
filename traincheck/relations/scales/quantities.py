"""The quantities of a run, one row each: their bands, and the texts of findings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from traincheck.schema.claims import Needs, sampled
from traincheck.schema.events import Event
from traincheck.schema.findings import Subject, Symptom, Topic
from traincheck.schema.torch_api import Families

LOSS, GRADIENT, RATE, LENGTH = "first loss", "first gradient", "last rate", "schedule length"
LOW, HIGH = "low", "high"
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
class Quantity:
    """A number that a run has once.

    Attributes:
        name: in claims.
        needs: what a trace must hold to read it.
        factor: the limits are that much farther than the smallest and largest reading.
        margin: and at least that much farther.
        varies: the factor is at least the largest reading divided by the smallest one.
        most: the largest possible value.
        only: if given, the one value that is claimed; others are settings.
        text: what is limited, with ``{of}``.
        headline, cause, fix, symptom, topic, severity: of a finding.
    """

    name: str
    needs: Needs
    factor: float
    text: str
    headline: str
    cause: str
    fix: str
    symptom: Symptom
    margin: float = 0.0
    varies: bool = False
    most: float = math.inf
    only: float | None = None
    topic: Topic | None = None
    severity: str = "warning"

    def limits(self, low: float, high: float) -> dict[str, float]:
        """The limits of readings from ``low`` to ``high``: LOW, HIGH, both, or neither."""
        if self.only is not None and max(high / self.only, self.only / low) > self.factor:
            return {}
        factor = max(self.factor, high / low) if self.varies else self.factor
        least = min(low / factor, low - self.margin)
        largest = max(high * factor, high + self.margin)
        found = {LOW: _rounded(least, math.floor)} if least > 0 else {}
        return found | ({HIGH: _rounded(largest, math.ceil)} if largest < self.most else {})


def _rounded(value: float, to_whole: Callable[[float], int]) -> float:
    """The value with three digits, rounded down or up."""
    digit = 10.0 ** (math.floor(math.log10(value)) + 1 - _DIGITS)
    return float(f"{to_whole(value / digit) * digit:.{_DIGITS}g}")


_ALL = (
    Quantity(
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReading:
    """One quantity of a run.

    Attributes:
        what: its name in the table.
        under: what it depends on; only runs with the same are compared.
        values: the value, and others of the same run, whose spread widens the band.
        seen: what was observed, as a clause.
        at: what a finding points to.
        event: that shows it.
        of: its owner, such as an optimizer; empty for the run.
    """

    what: str
    under: str
    values: tuple[float, ...]
    seen: str
    at: Subject
    event: Event
    of: str = ""
