"""Consecutive steps that show the same fault: a single one may be chance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

_Key = TypeVar("_Key")


@dataclass(slots=True)
class Streak:
    """count: number of consecutive steps. first: the first of them."""

    first: int | None
    count: int = 0


def extend(streaks: dict[_Key, Streak], key: _Key, step: int | None) -> Streak:
    """Add a step to the streak of a key, which starts if there is none."""
    streak = streaks.setdefault(key, Streak(step))
    streak.count += 1
    return streak
