"""Facts about loads, saves and evaluations."""

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
Key = tuple[str, str]  # the property, and what has it


class CheckpointFact(NamedTuple):
    """One observation.

    Attributes:
        weight: how many examples it gives.
        name: what it is about, for messages.
        counts: by kind; of a file, the objects that can be saved; of a part, its values.
    """

    key: Key
    value: Any
    weight: int
    name: str
    event: Event
    evidence: tuple[Event, ...]
    counts: Mapping[str, int] = {}


def missing(claimed: Mapping[str, str], fact: CheckpointFact) -> list[str]:
    """Parts that a file lacks, though the program has such objects.

    A part under another name is not missing, nor are generator states that are combined.
    """
    found, names = fact.value, []
    for kind in sorted(set(claimed.values())):
        mine = {name for name, other in claimed.items() if other == kind}
        now = {name for name, other in found.items() if other == kind}
        is_short = len(now) < min(len(mine), fact.counts.get(kind, len(mine)))
        if is_short and not (kind == RNG and now - mine):
            names += sorted(mine - now)
    return names
