"""The facts of rules and of relations agree on what exists, in recorded programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.collect.recording import recording
from traincheck.readings.step_changes import StepChanges
from traincheck.readings.training_state import TrainingState
from traincheck.readings.variables import Variables
from traincheck.schema.events import OptimizerEvent, StateEvent, StepEvent


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()


def plain() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(4):
        step(model, optimizer, torch.randn(8, 4))


def frozen_and_unfrozen() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    model[0].requires_grad_(requires_grad=False)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for number in range(5):
        model[0].requires_grad_(requires_grad=number >= 2)
        step(model, optimizer, torch.randn(8, 4))


def two_models_in_turn() -> None:
    models = nn.Linear(4, 2), nn.Linear(4, 2)
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in models]
    for number in range(6):
        step(models[number % 2], optimizers[number % 2], torch.randn(8, 4))


def replaced_and_accumulated() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for number in range(5):
        model(torch.randn(8, 4)).sum().backward()
        step(model, optimizer, torch.randn(8, 4))
        if number == 2:
            model[1] = nn.Linear(4, 2)
            optimizer = torch.optim.SGD(model.parameters(), 0.1)


def uncleared() -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(4):
        model(torch.randn(8, 4)).sum().backward()
        optimizer.step()


@pytest.mark.parametrize(
    "program",
    [plain, frozen_and_unfrozen, two_models_in_turn, replaced_and_accumulated, uncleared],
)
def test_they_agree_at_each_step(tmp_path: Path, program: Callable[[], None]) -> None:
    with recording(tmp_path / "run") as run:
        program()
    state, variables, changes = TrainingState(), Variables(), StepChanges()
    steps = 0
    for event in run.events:
        state.observe(event)
        if isinstance(event, OptimizerEvent):
            variables.hold(event)
        elif isinstance(event, StateEvent):
            variables.observe(event)
            changes.observe(event)
        elif isinstance(event, StepEvent):
            steps += 1
            known = variables.by_role["parameter"]
            names = {name for one in state.parameters.values() for name in one.names}
            assert names == known.keys()
            assert state.held() >= {v.identity for v in variables.held_parameters()} != set()
            present = set(state.names(state._gradients.nonzero))
            assert present == changes.gradients & known.keys()
            changes.turn(event)
    assert steps >= 3
