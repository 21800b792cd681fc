"""Clocks of a profiled step. A stamp is taken at once and read after the step."""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any, Protocol

import torch

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

    name = "cuda"

    def __init__(self) -> None:
        self._free: list[Any] = []

    def stamp(self) -> Any:
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def read(self, stamps: list[Any]) -> list[int]:
        if not stamps:
            return []
        torch.cuda.synchronize()
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
    if not torch.cuda.is_available() or not torch.cuda._initialized:
        return CpuClock()
    used = [n for n in range(torch.cuda.device_count()) if torch.cuda.memory_allocated(n)]
    return CudaClock() if len(used) == 1 else CpuClock()
