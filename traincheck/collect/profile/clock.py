"""Clocks of a profiled step, and the time of the step from each stamp to the next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, NamedTuple, Protocol

from traincheck.collect.tensors import devices

_NS_PER_MS = 1_000_000


class StepClock(Protocol):
    """Takes stamps, and turns them into nanoseconds once the step is over."""

    name: str

    def stamp(self) -> Any:
        """The present moment."""

    def read(self, stamps: list[Any]) -> list[int]:
        """Nanoseconds of stamps that were taken in this order; their zero is arbitrary."""


class CpuClock:
    """The monotonic clock of the process."""

    name = "cpu"
    stamp = staticmethod(perf_counter_ns)

    def read(self, stamps: list[Any]) -> list[int]:
        return stamps


class CudaClock:
    """Events on the current stream of the thread. Nothing waits for the device within the step."""

    name = devices.KIND

    def __init__(self) -> None:
        self._free: list[Any] = []

    def stamp(self) -> Any:
        event = self._free.pop() if self._free else devices.event()
        event.record()
        return event

    def read(self, stamps: list[Any]) -> list[int]:
        if not stamps:
            return []
        devices.wait()
        found, last = [], 0
        for stamp in stamps:  # events of several streams may not be in order
            last = max(last, int(stamps[0].elapsed_time(stamp) * _NS_PER_MS))
            found.append(last)
        self._free = stamps  # they are recorded again in the next step
        return found


def step_clock() -> StepClock:
    """The clock of the device that the process computes on.

    Events of different devices cannot be compared: with several devices in one process it is the
    clock of the CPU, which sees kernels only where the program waits for them.
    """
    return CudaClock() if devices.computing() == 1 else CpuClock()


OUTSIDE, FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER, LOADER, OVERHEAD = range(7)
PHASES = ("outside", "forward", "backward", "recompute", "optimizer", "loader", "overhead")
# Phases whose time is that of layers.
OF_LAYERS = (FORWARD, BACKWARD, RECOMPUTE)


# The recording itself is a phase, so its cost is known and is in no layer.
class Position(NamedTuple):
    """A call, 0 outside of all modules, and the phase."""

    call: int
    phase: int


class Times(NamedTuple):
    """Nanoseconds. own, total: by row of a module and phase. phases: by phase."""

    own: Counter[tuple[int, int]]
    total: Counter[tuple[int, int]]
    phases: Counter[int]


class Timeline:
    """The laps of one step.

    Attributes:
        calls: row of the module and number of the calling call, for each call; 0 is the program.
        call, phase: the present position.
        laps: stamp, call and phase; each lasts until the next one.
    """

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock
        self.stamp = clock.stamp
        self.calls: list[tuple[int, int]] = [(0, 0)]
        self.call, self.phase = 0, OUTSIDE
        self.laps: list[tuple[Any, int, int]] = []

    @property
    def here(self) -> Position:
        """The present position, to `go` back to."""
        return Position(self.call, self.phase)

    def pause(self) -> None:
        """Code of traincheck begins."""
        self.laps.append((self.stamp(), 0, OVERHEAD))

    def resume(self) -> None:
        """It ends; the program continues where it was."""
        self.laps.append((self.stamp(), self.call, self.phase))

    def go(self, call: int, phase: int) -> None:
        """Continue at another position, from now on."""
        self.call, self.phase = call, phase
        self.laps.append((self.stamp(), call, phase))

    def enter(self, row: int, *, is_again: bool) -> int:
        """A module is called, `is_again` for a backward pass. Returns the number of the call."""
        self.calls.append((row, self.call))
        self.call = len(self.calls) - 1
        self.phase = RECOMPUTE if is_again else FORWARD
        return self.call

    def times(self, rows_of: Callable[[int], tuple[int, ...]]) -> Times:
        """Sums over the laps so far. rows_of: the rows that the time of a call is part of."""
        self.pause()
        laps = self.laps
        moments = self._clock.read([lap[0] for lap in laps])
        spent: Counter[tuple[int, int]] = Counter()
        for index in range(len(laps) - 1):
            _, call, phase = laps[index]
            spent[call, phase] += moments[index + 1] - moments[index]
        own, total, phases = Counter[Any](), Counter[Any](), Counter[int]()
        for (call, phase), nanoseconds in spent.items():
            phases[phase] += nanoseconds
            if phase in OF_LAYERS:
                own[self.calls[call][0], phase] += nanoseconds
                for row in rows_of(call):
                    total[row, phase] += nanoseconds
        return Times(own, total, phases)
