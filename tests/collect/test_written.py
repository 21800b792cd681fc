"""Gradients that are written by the program, not by autograd: no rule takes them for kept ones."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.checking import fires, quiet
from tests.collect.recording import recording
from traincheck.schema.findings import Verdict
from traincheck.schema.observations.gradients import WrittenGradients


def into(parameter: torch.Tensor, gradient: torch.Tensor) -> None:
    """Write the gradient of a master where it lies, as apex does."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    parameter.grad.copy_(gradient)


def anew(parameter: torch.Tensor, gradient: torch.Tensor) -> None:
    """Give a master another tensor."""
    parameter.grad = gradient.to(parameter.dtype, copy=True)


def by_call(model: nn.Module) -> None:
    """A look follows."""
    model.zero_grad()


def by_hand(model: nn.Module) -> None:
    """No look follows."""
    for parameter in model.parameters():
        parameter.grad = None


@pytest.mark.parametrize("clear", [by_call, by_hand])
@pytest.mark.parametrize("give", [into, anew])
@pytest.mark.parametrize("device", ["near", "far"])
def test_quiet_on_masters_whose_gradients_the_program_writes(
    tmp_path: Path,
    request: pytest.FixtureRequest,
    device: str,
    give: Callable[[torch.Tensor, torch.Tensor], None],
    clear: Callable[[nn.Module], None],
) -> None:
    """Each is written to in every step, which clears what was there."""
    if device == "far":
        request.getfixturevalue("far")
    with recording(tmp_path / "run") as run:
        model = nn.Linear(4, 1).bfloat16()
        masters = copy.deepcopy(model).float()
        optimizer = torch.optim.SGD(masters.parameters(), lr=0.05)
        for _ in range(5):
            clear(model)
            model(torch.randn(8, 4).bfloat16()).sum().backward()
            for master, parameter in zip(masters.parameters(), model.parameters(), strict=True):
                assert parameter.grad is not None
                give(master, parameter.grad)
            optimizer.step()
            with torch.no_grad():
                for master, parameter in zip(masters.parameters(), model.parameters(), strict=True):
                    parameter.copy_(master)
    assert quiet("TC201", run.events) is Verdict.HELD
    in_place = [
        mark for mark in run.marks(WrittenGradients.text) if "Linear#2.weight" in mark.data["names"]
    ]
    assert len(in_place) == (3 if clear is by_hand else 0)


@pytest.mark.parametrize("device", ["near", "far"])
def test_fires_where_gradients_are_scaled_by_hand_and_never_cleared(
    tmp_path: Path, request: pytest.FixtureRequest, device: str
) -> None:
    if device == "far":
        request.getfixturevalue("far")
    with recording(tmp_path / "run") as run:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(5):
            model(torch.randn(8, 4)).sum().backward()
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad.mul_(0.5)
            optimizer.step()
    finding = fires("TC201", run.events)
    assert (finding.first_step, finding.last_step) == (1, 4)
