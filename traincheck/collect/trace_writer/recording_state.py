"""Flags that every wrapper tests first, and the position in the run."""

from __future__ import annotations

from collections.abc import Callable

import torch

from traincheck.collect.templates import STAGE_ALONE, STEP_AND_STAGE
from traincheck.collect.tensors.reading import has_mode

# One C call instead of one for each device type: 0.04 against 0.36 microseconds a record.
any_autocast: Callable[[], bool] = getattr(
    torch._C, "_is_any_autocast_enabled", torch.is_autocast_enabled
)


class RecordingFlags:
    """Flags that every wrapper tests first. One object per session, so that a change is one store.

    Attributes:
        on: records are requested.
        idle: nothing is recorded and no step boundary is awaited.
        inner_calls, scans: calls within modules, and changes of variables, are recorded now.
        autocast, modes: autocast, or function modes, were on before, so they must be tested.
        muted: nothing is written: this process is a copy for an experiment.
    """

    __slots__ = ("autocast", "idle", "inner_calls", "modes", "muted", "on", "scans")

    def __init__(self) -> None:
        self.on = True
        self.inner_calls = self.scans = True
        self.idle = self.muted = False
        self.autocast = any_autocast()
        self.modes = has_mode()


class Clock:
    """The position in the run: the source of the common fields of every record."""

    __slots__ = ("fields", "stage", "step")

    def __init__(self) -> None:
        self.set(0, "init")

    def set(self, step: int | None, stage: str) -> None:
        """Set the position. ``fields`` is the same, serialized."""
        self.step = step
        self.stage = stage
        if step is None:
            self.fields = STAGE_ALONE % stage.encode()
        else:
            self.fields = STEP_AND_STAGE % (step, stage.encode())
