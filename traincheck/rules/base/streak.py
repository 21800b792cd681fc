"""Steps in a row that show the same fault: one may be chance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

_Key = TypeVar("_Key")


@dataclass(slots=True)
class Streak:
    """count: how many steps in a row. first: the first of them."""

    first: int | None
    count: int = 0


def extend(streaks: dict[_Key, Streak], key: _Key, step: int | None) -> Streak:
    """The streak of a key with one more step, which begins one where there is none."""
    streak = streaks.setdefault(key, Streak(step))
    streak.count += 1
    return streak
