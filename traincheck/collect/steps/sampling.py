"""Which steps are recorded, and how often something is observed within a run."""

from __future__ import annotations

from traincheck.schema.claims import USE_SCHEDULE, Schedule

_FAR = 1 << 20  # steps


class EveryNth:
    """The first ``warmup`` steps, then those whose number is a multiple of ``every``.

    Decides from the step number alone, so that all ranks decide the same.

    Attributes:
        is_all: whether every step is recorded; then it need not be asked.
    """

    def __init__(self, every: int = 1, warmup: int = 0) -> None:
        self.is_all = every == 1
        self.every = every
        self.warmup = warmup

    def wants(self, step: int) -> bool:
        return step < self.warmup or step % self.every == 0

    def foresees(self, step: int) -> bool:
        """The answer for a step that has not begun. Decides nothing."""
        return self.wants(step)

    def skipped(self, step: int) -> int:
        """Number of steps that are certainly not recorded, from this one on."""
        return 0 if self.wants(step) else self.every - step % self.every


class Window(EveryNth):
    """The steps from ``first`` to ``last``, and no other.

    Args:
        first: number of the first recorded step, from 0.
        last: number of the last one.
    """

    def __init__(self, first: int, last: int) -> None:
        super().__init__()
        self.is_all = False
        self.first, self.last = first, last

    def wants(self, step: int) -> bool:
        return self.first <= step <= self.last

    def skipped(self, step: int) -> int:
        """Number of steps that are certainly not recorded, from this one on."""
        if step < self.first:
            return self.first - step
        return 0 if step <= self.last else _FAR


class OnDemand(EveryNth):
    """Like `EveryNth` until ``limit`` steps were recorded, and the next step on request.

    Args:
        every: see `EveryNth`.
        warmup: see `EveryNth`.
        limit: number of steps to record; None for no limit.
    """

    def __init__(self, every: int = 1, warmup: int = 0, limit: int | None = None) -> None:
        super().__init__(every, warmup)
        self.is_all = False
        self._left = limit
        self._is_asked = False

    def ask(self) -> None:
        """Record the next step that begins."""
        self._is_asked = True

    def skipped(self, step: int) -> int:
        """None is certain: the next one may be requested."""
        return 0

    def foresees(self, step: int) -> bool:
        """See `EveryNth`: a step counts against the limit only when it begins."""
        return self._is_asked or (self._left != 0 and super().wants(step))

    def wants(self, step: int) -> bool:
        is_asked, self._is_asked = self._is_asked, False
        if is_asked:
            return True
        if self._left == 0 or not super().wants(step):
            return False
        if self._left is not None:
            self._left -= 1
        return True


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
