"""Readings of the evidence that several rows of the table share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from traincheck.diff.environment import arithmetic
from traincheck.diff.evidence import Evidence, Side
from traincheck.diff.items import Item
from traincheck.diff.records import CallRecord
from traincheck.diff.values import NULL
from traincheck.schema.torch_api import Families

_SHOWN = 4


def fingerprint(value: Any) -> str | None:
    """The fingerprint of a recorded tensor; None if it has none."""
    found = value.get("fingerprint") if isinstance(value, dict) else None
    return found if isinstance(found, str) else None


def norm(value: Any) -> float | None:
    """The L2 norm of a recorded tensor; None if it has none."""
    stats = value.get("stats") if isinstance(value, dict) else None
    found = stats.get("norm") if isinstance(stats, dict) else None
    return float(found) if isinstance(found, (int, float)) else None


def stats_of(side: Side, role: str, name: str) -> dict[str, Any] | None:
    """The summary of a variable when the step ended."""
    value = side.values.get((role, name))
    return None if value is None or value == NULL else msgspec.json.decode(value)


def calls_of(side: Side, family: str) -> list[CallRecord]:
    """The calls of an API family in the step."""
    return [call for call in side.view.calls if family in (call.family, call.api)]


def updates(side: Side) -> int:
    """How often an optimizer stepped in the step."""
    return len(calls_of(side, Families.OPTIMIZER_STEP))


def arithmetic_facts(evidence: Evidence) -> list[str]:
    """Facts of the processes that change the last bits of a computation, as texts."""
    return [f"{e.name} {e.a} | {e.b}" for e in arithmetic(evidence.environment)][:_SHOWN]


def sizes(items: list[Item]) -> Iterator[float]:
    """The relative differences of items with numbers."""
    yield from (item.size for item in items if item.size is not None)


def elsewhere(evidence: Evidence, value: Any, name: str) -> str:
    """Where run A has this value under another name or in another step; "" if nowhere."""
    if evidence.is_ranks:
        return ""
    places = [
        place
        for place in evidence.a.lookup.of_value(fingerprint(value))
        if place.kind == "state" and (place.name, place.step) != (name, evidence.a.view.number)
    ]
    if not places:
        return ""
    place = next((p for p in places if p.name != name), places[-1])
    when = "before training" if place.record.get("g") == "init" else f"after step {place.step}"
    return f"B's value is that of {place.name} in A {when}"
