"""What a careful user changes is no fault: learned from one run, checked on another."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.collect.recording import recording
from tests.learning import learn, report_of
from traincheck.schema.events import Event
from traincheck.schema.findings import Report

STEPS = 24


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(rows))


def frozen(model: Net) -> Iterable[nn.Parameter]:
    """The backbone is kept as it is, in evaluation mode, and out of the optimizer."""
    model.backbone.requires_grad_(False).eval()
    return model.head.parameters()


def clear(model: Net, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()


def run(
    folder: Path,
    *,
    seed: int = 0,
    trained: Callable[[Net], Iterable[nn.Parameter]] = nn.Module.parameters,
    clear: Callable[[Net, torch.optim.Optimizer], None] = clear,
) -> list[Event]:
    torch.manual_seed(seed)
    with recording(folder) as recorded:
        model = Net().train()
        optimizer = torch.optim.Adam(trained(model), lr=0.01)
        for _ in range(STEPS):
            rows = torch.randn(16, 8)
            loss = F.cross_entropy(model(rows), rows[:, :3].argmax(1))
            clear(model, optimizer)
            loss.backward()
            optimizer.step()
    return recorded.events


@pytest.fixture(scope="module")
def check(tmp_path_factory: pytest.TempPathFactory) -> Callable[[list[Event]], Report]:
    invariants = learn(run(tmp_path_factory.mktemp("reference"))).invariants
    assert invariants
    return lambda events: report_of(invariants, events)


def test_another_seed(tmp_path: Path, check: Callable[[list[Event]], Report]) -> None:
    assert not check(run(tmp_path, seed=1)).findings


def test_a_part_that_is_frozen_is_told_as_that(
    tmp_path: Path, check: Callable[[list[Event]], Report]
) -> None:
    (finding,) = check(run(tmp_path, trained=frozen)).findings
    assert finding.severity == "warning"
    assert finding.title.endswith("frozen (requires_grad is False)")
    assert all(name.startswith("Net.backbone.") for name in finding.variables)


def test_a_part_that_is_left_out_by_mistake_is_an_error(
    tmp_path: Path, check: Callable[[list[Event]], Report]
) -> None:
    finding, *_ = check(run(tmp_path, trained=lambda model: model.head.parameters())).findings
    assert (finding.severity, finding.title[:19]) == ("error", "No optimizer holds ")
