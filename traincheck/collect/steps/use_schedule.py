"""Limit how often something is observed, by the number of its uses, and so the cost."""

from __future__ import annotations

from traincheck.schema.claims import USE_SCHEDULE, Schedule


class UseSchedule:
    """Counts steps with a use, and the uses of the last of them.

    Args:
        most: observed uses per step.
        schedule: the observed ones among the steps with a use, counted from 0.
    """

    def __init__(self, most: int, schedule: Schedule = USE_SCHEDULE) -> None:
        self._most = most
        self._schedule = schedule
        self._step: int | None = -1
        self._steps = 0
        self.times = 0

    def is_due(self, step: int | None) -> bool:
        """It is used in ``step``: whether to observe this use."""
        if self._step != step:
            self._step, self.times = step, 0
            self._steps += 1
        self.times += 1
        return self.times <= self._most and self._schedule.includes(self._steps - 1)
