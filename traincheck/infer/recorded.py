"""Claims about APIs that are recorded only on request cannot be checked without that request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from traincheck.infer.coverage import RunCoverage
from traincheck.schema.claims import LEVELS, Invariant, without_sampling
from traincheck.schema.torch_api import is_operator
from traincheck.store.manifest import one_step_in


def restrict_to_recorded(
    invariants: Iterable[Invariant], coverages: Sequence[RunCoverage]
) -> list[Invariant]:
    """Let invariants need the packages and the level of the runs that they were learned from.

    coverages: of these runs.
    """
    packages: dict[str, set[str]] = {}
    for one in coverages:
        for api, package in one.packages:
            packages.setdefault(api, set()).add(package)
    found = []
    for invariant in invariants:
        calls = without_sampling(invariant.needs.calls)
        asked = frozenset().union(*(packages[api] for api in calls & packages.keys()))
        level = _level(frozenset(filter(is_operator, calls)), coverages)
        needs = replace(invariant.needs, packages=asked, level=level)
        found.append(replace(invariant, needs=needs))
    return found


def view_notes(settings: Mapping[str, Any]) -> list[str]:
    """Sentences on what a run was recorded without. settings: of its manifest."""
    notes = []
    if settings.get("needs") is not None:
        notes.append(
            "only what some checks need was recorded, so less can be learned: record with "
            "traincheck-collect, without -i and --rules"
        )
    every = one_step_in(settings)
    if every > 1:
        notes.append(f"one step in {every:,} was recorded, so less can be learned")
    return notes


def _level(operators: frozenset[str], coverages: Iterable[RunCoverage]) -> str:
    """The level of the runs that call these operators; empty if they have both levels."""
    levels = {level for one in coverages if operators & one.calls for level in one.levels}
    return levels.pop() if len(levels) == 1 and levels <= set(LEVELS) else ""
