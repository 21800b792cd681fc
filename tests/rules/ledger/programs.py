"""Small programs that are recorded in the test's own process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from tests.collect.recording import recording
from traincheck.schema.events import Event

Each = Callable[[int], object]


def nothing(step: int) -> None:
    """For steps with nothing beside the update."""


def recorded(folder: Path, program: Callable[[], object]) -> list[Event]:
    """The events of a program."""
    with recording(folder) as run:
        program()
    return run.events


def model() -> nn.Module:
    """Two layers, for groups of their own."""
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def train(
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: int = 6,
    *,
    before: Each = nothing,
    after: Each = nothing,
) -> None:
    """Some updates, with a call before and after each."""
    for step in range(steps):
        before(step)
        optimizer.zero_grad()
        net(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        after(step)


def set_rate(groups: list[dict[str, object]], rate: float) -> None:
    """Write a learning rate to all groups."""
    for group in groups:
        group["lr"] = rate
