"""The words of checksum records: groups, numbers, and the schedules that choose steps."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from traincheck.errors import UsageError

# What a record is about
PARAMETER, GRADIENT, LOCAL_GRADIENT = "parameter", "gradient", "local_gradient"
BUFFER, STATE, SETTINGS = "buffer", "optimizer_state", "optimizer"
GENERATOR, BATCH = "generator", "batch"
GROUPS = (PARAMETER, GRADIENT, LOCAL_GRADIENT, BUFFER, STATE, SETTINGS, GENERATOR, BATCH)

# Numbers of a tensor. With dtype, shape and fingerprint, and both infinities as one, they are 17.
NUMBERS: Mapping[str, str] = {
    "posinf": "number of elements that are positive infinity",
    "neginf": "number of elements that are negative infinity",
    "nans": "number of elements that are NaN",
    "zeros": "number of elements that are zero",
    "med": "median, the lower of two",
    "mean": "mean",
    "amean": "mean of absolute values",
    "std": "standard deviation of a sample (n - 1)",
    "var": "variance (n)",
    "uvar": "variance of a sample (n - 1)",
    "skew": "skewness, around the mean and by the standard deviation of a sample",
    "kurt": "kurtosis, likewise; about 3 for a normal distribution",
    "mode": "most frequent element, the smallest of several",
    "min": "smallest element",
    "max": "largest element",
}

_PART = re.compile(
    r"(?P<all>all)|first=(?P<first>\d{1,9})|every=(?P<every>\d{1,9})|rank=(?P<rank>\d{1,7})"
    r"|(?P<low>\d{1,15}):(?P<high>\d{1,15})|(?P<one>\d{1,15})"
)
_FIX = "for example all, every=100, first=10, 5:8, first=3,every=100 or 40:50,rank=0"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSchedule:
    """The steps in which checksums are taken, and the ranks that take them.

    Attributes:
        every: the steps whose number is a multiple of it; 0 for none.
        first: the first steps.
        spans: ranges of steps, the ends excluded.
        ranks: empty for all.
    """

    every: int = 0
    first: int = 0
    spans: tuple[tuple[int, int], ...] = ()
    ranks: frozenset[int] = frozenset()

    def includes(self, step: int | None, rank: int) -> bool:
        """Whether checksums are taken in ``step`` of ``rank``; never outside of steps (None)."""
        if step is None or (self.ranks and rank not in self.ranks):
            return False
        if step < self.first or (self.every and step % self.every == 0):
            return True
        return any(low <= step < high for low, high in self.spans)


def parse_schedule(text: str) -> StepSchedule:
    """Read a schedule such as ``first=3,every=100,rank=0``: parts add steps, ranks restrict them.

    Raises:
        UsageError: the text is not one.
    """
    every, first, spans, ranks = 0, 0, [], set()
    for part in text.split(","):
        found = _PART.fullmatch(part.strip())
        if found is None:
            raise UsageError(f"{part!r} is no part of a schedule of steps", fix=_FIX)
        if found["all"] or found["every"]:
            number = int(found["every"] or 1)
            if not number or (every and every != number):
                raise UsageError(f"schedule {text!r} has no usable every=N", fix=_FIX)
            every = number
        elif found["first"]:
            first = max(first, int(found["first"]))
        elif found["rank"]:
            ranks.add(int(found["rank"]))
        else:
            low = int(found["low"] or found["one"])
            high = int(found["high"]) if found["high"] else low + 1
            if high <= low:
                raise UsageError(f"{part!r} contains no step", fix=_FIX)
            spans.append((low, high))
    if not (every or first or spans):
        every = 1  # ranks alone: all steps of these
    return StepSchedule(every=every, first=first, spans=tuple(spans), ranks=frozenset(ranks))
