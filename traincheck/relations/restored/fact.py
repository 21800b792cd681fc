"""A fact about loads, saves and evaluations; it knows no claims."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from traincheck.schema.events import (
    Event,
)

MODEL, OPTIMIZER, SCHEDULER, SCALER, RNG = "model", "optimizer", "scheduler", "scaler", "rng"
LOADS, COPIES, ALSO, FILE, PART = "loads", "copies", "also", "file", "part"
TRAINED, COUNTS, BACK = "trained", "counts", "back"
EVALUATED, LEFT = "evaluated", "left"
Key = tuple[str, str]  # what is said, and of what


class Fact(NamedTuple):
    """Something that was seen. weight: examples; name: what it is about, for people.

    counts: by kind, of a file, how many there are to save; of a part, of how many values it is.
    """

    key: Key
    value: Any
    weight: int
    name: str
    event: Event
    evidence: tuple[Event, ...]
    counts: Mapping[str, int] = {}


def missing(claimed: Mapping[str, str], fact: Fact) -> list[str]:
    """Parts that a file is said to hold, and does not though there are such things.

    What has another name is there, and so are states of generators that are put together.
    """
    found, names = fact.value, []
    for kind in sorted(set(claimed.values())):
        mine = {name for name, other in claimed.items() if other == kind}
        now = {name for name, other in found.items() if other == kind}
        is_short = len(now) < min(len(mine), fact.counts.get(kind, len(mine)))
        if is_short and not (kind == RNG and now - mine):
            names += sorted(mine - now)
    return names
