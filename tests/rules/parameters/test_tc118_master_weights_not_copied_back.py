"""TC118: masters that are never copied back."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.checking import fires, quiet
from tests.collect.recording import recording
from tests.golden import Golden, mentions
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict

Make = Callable[[nn.Module], Sequence[torch.Tensor]]


def as_list(model: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone().float().requires_grad_() for p in model.parameters()]


def as_model(model: nn.Module) -> list[nn.Parameter]:
    return list(copy.deepcopy(model).float().parameters())


def flat(model: nn.Module) -> list[torch.Tensor]:
    """One for all, as in utilities for fp16."""
    return [torch.cat([p.detach().float().flatten() for p in model.parameters()]).requires_grad_()]


def gradients(model: nn.Module, masters: Sequence[torch.Tensor]) -> None:
    """Give masters the gradients of the model."""
    grads = [p.grad.float() for p in model.parameters() if p.grad is not None]
    if len(masters) == 1:
        grads = [torch.cat([grad.flatten() for grad in grads])]
    for master, grad in zip(masters, grads, strict=True):
        master.grad = grad


def values(model: nn.Module, masters: Sequence[torch.Tensor]) -> None:
    """Give the model the values of masters."""
    shapes = [p.numel() for p in model.parameters()]
    parts = list(masters[0].split(shapes)) if len(masters) == 1 else list(masters)
    with torch.no_grad():
        for parameter, part in zip(model.parameters(), parts, strict=True):
            parameter.copy_(part.view_as(parameter))


def run(
    make: Make = as_list,
    *,
    copies: bool = False,
    steps: int = 13,
) -> list[Event]:
    with tempfile.TemporaryDirectory() as folder, recording(Path(folder) / "run") as found:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).bfloat16()
        masters = make(model)
        optimizer = torch.optim.SGD(masters, lr=0.05)
        for _ in range(steps):
            model.zero_grad()
            model(torch.randn(16, 6).bfloat16()).pow(2).mean().backward()
            gradients(model, masters)
            optimizer.step()
            if copies:
                values(model, masters)
    return found.events


BROKEN = run


@pytest.mark.parametrize("make", [as_list, as_model, flat])
def test_fires_where_nothing_comes_back(make: Make, golden: Golden) -> None:
    finding = fires("TC118", run(make))
    assert (finding.first_step, finding.severity) == (0, "error")
    golden(finding)
    assert mentions(finding, "opt0 (SGD)", Path(__file__).name)


@pytest.mark.parametrize("make", [as_list, as_model, flat])
def test_quiet_where_values_are_copied_back(
    make: Make,
) -> None:
    assert quiet("TC118", run(make, copies=True)) is Verdict.HELD


def test_quiet_on_a_short_run() -> None:
    assert quiet("TC118", run(steps=9)) is Verdict.HELD


def test_quiet_on_a_student_beside_its_teacher(tmp_path: Path) -> None:
    """The teacher is of the same class, and nobody has frozen it."""
    with recording(tmp_path / "run") as found:
        teacher, student = nn.Linear(6, 3), nn.Linear(6, 3)
        optimizer = torch.optim.SGD(student.parameters(), lr=0.05)
        for _ in range(13):
            x = torch.randn(16, 6)
            teacher.zero_grad()
            optimizer.zero_grad()
            (student(x) - teacher(x)).pow(2).mean().backward()
            optimizer.step()
    assert quiet("TC118", found.events) is Verdict.NOT_TRIGGERED
