"""Small real trainings whose steps differ in how they compute a loss."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import torch
from torch import nn

from tests.collect.recording import recording, skip_without_sizes
from traincheck.schema.events import Event


class Parts:
    """The models of a training, and the data of a step."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model, self.other = nn.Linear(8, 4), nn.Linear(8, 4)
        self.teacher = nn.Linear(8, 4).requires_grad_(False)
        self.weights = nn.Parameter(torch.zeros(2))
        parameters = [*self.model.parameters(), *self.other.parameters(), self.weights]
        self.optimizer = torch.optim.SGD(parameters, 0.1)
        self.step = 0
        self.next()

    def next(self) -> None:
        self.x, self.y = torch.randn(16, 8), torch.randint(0, 4, (16,))

    @property
    def out(self) -> torch.Tensor:
        found: torch.Tensor = self.model(self.x)
        return found


Loss: TypeAlias = Callable[[Parts], torch.Tensor]


def trained(folder: Path, loss: Loss, steps: int = 9) -> list[Event]:
    """The events of a training whose loss is computed by this function."""
    skip_without_sizes()
    with recording(folder) as run:
        train(loss, steps)
    return run.events


def train(loss: Loss, steps: int = 9) -> Parts:
    """Train without looking."""
    parts = Parts()
    for step in range(steps):
        parts.step = step
        parts.next()
        parts.optimizer.zero_grad()
        loss(parts).backward()
        parts.optimizer.step()
    return parts
