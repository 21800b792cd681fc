"""Common parts of the measured programs: settings and a step timer, no other project code.

All settings come from the environment, because some recorders start a script without arguments:

  UP_STEPS   number of optimizer steps                 UP_SEED   random seed
  UP_OPT     adam | sgd | adamw | adadelta             UP_LR     learning rate
  UP_BS      batch size                                UP_SCHED  1: StepLR scheduler
  UP_WORKERS processes that load data
  UP_EVAL    1: evaluate after every epoch             UP_BUG    name of the planted bug
  UP_TIMES   file that receives the times per step as one JSON object
  UP_TURNS   MINE:NEXT:N, two named pipes: run N steps at each byte that MINE gives, then write one
             to NEXT, so that programs that are compared take turns within milliseconds
  UP_COUNT   LIBRARY:M:N, calls on() of the library after step M and off() after step N
  UP_HOME    a file in this folder, for recorders that run a copy of the script elsewhere
"""

from __future__ import annotations

import ctypes
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def env(name: str, default: Any, cast: Callable[[str], Any] = str) -> Any:
    """The setting ``UP_<name>``, or the default when it is unset or empty."""
    value = os.environ.get("UP_" + name)
    return cast(value) if value else default


class Turns:
    """One place in a ring of programs of which one runs at a time."""

    def __init__(self, mine: str, following: str, steps: str) -> None:
        # Open for both, so that neither end waits for the other or breaks when it goes.
        self._mine = os.open(mine, os.O_RDWR)
        self._following = os.open(following, os.O_RDWR)
        self.steps = int(steps)
        self.take()
        self.give()  # a first round without work: when it ends, all programs have started
        self.take()

    def take(self) -> None:
        """Wait for one's turn."""
        os.read(self._mine, 1)

    def give(self) -> None:
        """Let the next one run."""
        os.write(self._following, b".")


class StepTimer:
    """Wall and CPU seconds between ticks. CPU time is compared: a busy machine bends it less."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.cpu: list[float] = []
        self.losses: list[float] = []
        self._turns = Turns(*env("TURNS", "").split(":")) if env("TURNS", "") else None
        self._switches: dict[int, Callable[[], object]] = {}
        if env("COUNT", ""):
            library, first, last = env("COUNT", "").split(":")
            switch = ctypes.CDLL(library)
            self._switches = {int(first): switch.on, int(last): switch.off}
        self.start()

    def start(self) -> None:
        """Forget the time since the last tick: it was not spent on a step."""
        self._wall_from = time.perf_counter()
        self._cpu_from = time.process_time()

    def tick(self, loss: float) -> None:
        """A step ended."""
        self.wall.append(time.perf_counter() - self._wall_from)
        self.cpu.append(time.process_time() - self._cpu_from)
        self.losses.append(loss)
        if len(self.wall) in self._switches:
            self._switches[len(self.wall)]()
        if self._turns is not None and len(self.wall) % self._turns.steps == 0:
            self._turns.give()
            self._turns.take()
        self.start()

    def dump(self, **extra: Any) -> None:
        """Write ``UP_TIMES`` when asked to, and print one line."""
        if self._turns is not None:
            self._turns.give()
        path = os.environ.get("UP_TIMES")
        if path:
            times = {
                "steps": len(self.wall),
                "dt": self.wall,
                "cpu": self.cpu,
                "losses": self.losses,
            }
            Path(path).write_text(json.dumps({**times, **extra}), encoding="utf-8")
        settled = sorted(self.wall[3:] or self.wall)
        median_ms = settled[len(settled) // 2] * 1e3
        print(
            f"UP_RESULT steps={len(self.wall)} median_ms={median_ms:.3f} "
            f"first_ms={self.wall[0] * 1e3:.1f} loss0={self.losses[0]} lossN={self.losses[-1]}",
            flush=True,
        )
