"""Flags that every wrapper tests first: whether the program is recorded, or compiled by torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import compiler

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


# This is `torch.compiler.is_compiling`, which is two calls deep, in parts. Wrappers test is_traced
# first and `_is_compiling_flag` of `state` last, so a step that is not recorded pays one call.
class _Asked:
    """Replaces a flag that this torch does not have."""

    @property
    def _is_compiling_flag(self) -> bool:
        return compiler.is_compiling()


# Dynamo recognizes this function by name and assumes true: no code after it enters its graphs.
is_traced = compiler.is_dynamo_compiling
# The owner of the flag that is set while torch exports, and while a backend compiles.
state: Any = compiler if hasattr(compiler, "_is_compiling_flag") else _Asked()
