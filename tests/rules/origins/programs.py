"""Record a small program, and small models to make some of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from tests.collect.recording import recording
from traincheck.schema.events import Event

State = dict[str, torch.Tensor]


def small(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).to(dtype)


def recorded(path: Path, program: Callable[[], object]) -> list[Event]:
    torch.manual_seed(0)
    with recording(path) as run:
        program()
    return run.events
