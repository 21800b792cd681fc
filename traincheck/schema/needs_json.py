"""Needs to JSON and back, without msgspec: training processes get theirs so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from traincheck.schema.claims import Needs


def needs_json(needs: Needs) -> dict[str, Any]:
    """The JSON form of needs, each set as a sorted list."""
    return {
        "calls": sorted(needs.calls),
        "states": sorted(needs.states),
        "kinds": sorted(needs.kinds),
        "exact": needs.exact,
        **({"stats": sorted(needs.stats)} if needs.stats else {}),
        **({"level": needs.level} if needs.level else {}),
        **({"packages": sorted(needs.packages)} if needs.packages else {}),
    }


def own_needs(value: Mapping[str, Any]) -> Needs:
    """Needs that `needs_json` wrote. Those of a file are read by `invariant_file`, which is strict.

    Raises:
        TypeError: ``value`` has a key that needs have not.
    """
    sets = {name: frozenset(part) for name, part in value.items() if isinstance(part, list)}
    return Needs(**{**value, **sets})
