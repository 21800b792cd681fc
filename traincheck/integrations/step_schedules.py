"""Schedules of callbacks: the moments of a Lightning training at which one acts.

They combine: ``Every(n_steps=100) & GlobalRank(0)``, ``Fixed(0, 3) | Every(n_steps=100)``,
``~Never()``. Names and arguments are those of fkat 0.1.2.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from time import monotonic
from typing import Any

from traincheck.errors import UsageError

_STAGES = ("train", "validation", "test", "predict")


class Schedule:
    """The base of schedules: subclasses define `check`."""

    def check(
        self,
        *,
        stage: str | None = None,
        batch_idx: int | None = None,
        step: int | None = None,
        trainer: Any = None,
    ) -> bool:
        """Whether the callback acts now.

        Args:
            stage: "train", "validation", "test" or "predict"; None if not known.
            batch_idx: number of the batch in its epoch, from 0.
            step: number of updates so far (``trainer.global_step``).
            trainer: the ``Trainer``.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define check()")

    def __and__(self, other: Schedule) -> CombinedSchedule:
        """Both."""
        return CombinedSchedule(_all, (self, other))

    def __or__(self, other: Schedule) -> CombinedSchedule:
        """At least one."""
        return CombinedSchedule(_any, (self, other))

    def __invert__(self) -> InvertedSchedule:
        """Not this one."""
        return InvertedSchedule(self)


def _all(one: bool, other: bool) -> bool:
    return one and other


def _any(one: bool, other: bool) -> bool:
    return one or other


class InvertedSchedule(Schedule):
    """Whenever another schedule does not act.

    Args:
        other: that schedule.
    """

    def __init__(self, other: Schedule) -> None:
        self._other = other

    def check(self, **moment: Any) -> bool:
        return not self._other.check(**moment)


class CombinedSchedule(Schedule):
    """Several schedules, combined from left to right. Each of them is asked every time.

    Args:
        fn: combines two answers.
        schedules: one or more.
    """

    def __init__(self, fn: Callable[[bool, bool], bool], schedules: Sequence[Schedule]) -> None:
        if not schedules:
            raise UsageError("no schedules to combine", fix="give one or more schedules")
        self._fn = fn
        self._schedules = tuple(schedules)

    def check(self, **moment: Any) -> bool:
        first, *rest = [schedule.check(**moment) for schedule in self._schedules]
        for answer in rest:
            first = self._fn(first, answer)
        return first


class Never(Schedule):
    """At no moment."""

    def check(self, **moment: Any) -> bool:
        return False


class Always(Schedule):
    """At every moment."""

    def check(self, **moment: Any) -> bool:
        return True


class Fixed(Schedule):
    """A number of steps after others.

    Args:
        warmup_steps: number of first steps without action.
        active_steps: number of steps with action after them.
    """

    def __init__(self, warmup_steps: int, active_steps: int) -> None:
        self._steps = range(warmup_steps, warmup_steps + active_steps)

    def check(self, *, step: int | None = None, **moment: Any) -> bool:
        return step is not None and step in self._steps


class Every(Schedule):
    """Every n-th batch of an epoch, or every n-th step; with both, either.

    Args:
        n_batches: 0 for no batches.
        n_steps: 0 for no steps.
        stage: "train", "validation", "test" or "predict"; None for all.
    """

    def __init__(self, *, n_batches: int = 0, n_steps: int = 0, stage: str | None = None) -> None:
        if n_batches < 0 or n_steps < 0 or not (n_batches or n_steps):
            raise UsageError(
                f"n_batches is {n_batches} and n_steps is {n_steps}",
                fix="make one of them a number from 1",
            )
        if stage is not None and stage not in _STAGES:
            raise UsageError(f"stage is {stage!r}", fix=f"one of {', '.join(_STAGES)}")
        self._batches, self._steps, self._stage = n_batches, n_steps, stage

    def check(
        self,
        *,
        stage: str | None = None,
        batch_idx: int | None = None,
        step: int | None = None,
        **moment: Any,
    ) -> bool:
        if self._stage is not None and stage != self._stage:
            return False
        return any(
            every and number is not None and number % every == 0
            for every, number in ((self._batches, batch_idx), (self._steps, step))
        )


class Elapsed(Schedule):
    """The first time, and then when an interval has passed since the last action.

    Args:
        interval: the least time between two actions.
    """

    def __init__(self, interval: timedelta) -> None:
        self._seconds = interval.total_seconds()
        self._last: float | None = None

    def check(self, **moment: Any) -> bool:
        now = monotonic()
        if self._last is not None and now - self._last < self._seconds:
            return False
        self._last = now
        return True


class _Rank(Schedule):
    """Some ranks: the base of both kinds."""

    _attribute: str
    _variable: str

    def __init__(self, *ranks: int) -> None:
        self._ranks = frozenset(ranks)

    def check(self, *, trainer: Any = None, **moment: Any) -> bool:
        found = getattr(trainer, self._attribute, None)
        if not isinstance(found, int):
            text = os.environ.get(self._variable, "0")
            found = int(text) if text.isdigit() else 0
        return found in self._ranks


class GlobalRank(_Rank):
    """Some ranks of the job.

    Args:
        *ranks: their global indices.
    """

    _attribute, _variable = "global_rank", "RANK"


class LocalRank(_Rank):
    """Some ranks of each machine.

    Args:
        *ranks: their indices on the machine.
    """

    _attribute, _variable = "local_rank", "LOCAL_RANK"
