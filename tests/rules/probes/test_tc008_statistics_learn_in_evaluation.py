"""TC008: statistics learn while a model is evaluated."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from tests.checking import fires, quiet
from tests.rules.probing import classified, probed, results, trained
from traincheck.schema.findings import Verdict

BROKEN = probed(
    "eval_state",
    numbers={"change": 0.05},
    where="Net.normalizer",
    detail={"buffer": "normalizer.count", "class": "Normalizer"},
)


class Policy(nn.Module):
    def __init__(self, *, is_broken: bool) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("calls", torch.zeros(()), persistent=False)
        self.mean: torch.Tensor
        self.calls: torch.Tensor
        self.head, self.is_broken = nn.Linear(8, 3), is_broken

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.training or self.is_broken:
            with torch.no_grad():
                self.mean.lerp_(x.mean(0), 0.1)
        return self.head(x - self.mean.clone())


def evaluated(model: nn.Module, step: int) -> torch.Tensor:
    if step % 4 == 3:
        model.eval()
        with torch.no_grad():
            for _ in range(3):
                model(torch.randn(16, 8))
        model.train()
    return classified(model, step)


def test_fires_on_a_result() -> None:
    assert fires("TC008", BROKEN).subject.module == "Net.normalizer"


def test_fires_on_statistics_that_ignore_the_mode(tmp_path: Path) -> None:
    events = trained(tmp_path, Policy(is_broken=True), evaluated)
    assert fires("TC008", events).subject.module == "Policy"
    (first, *_) = results(events, "eval_state")
    assert first.detail["buffer"] == "mean"


def test_quiet_where_they_follow_it(tmp_path: Path) -> None:
    assert quiet("TC008", trained(tmp_path, Policy(is_broken=False), evaluated)) is Verdict.HELD


def test_quiet_on_batch_norms(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    assert quiet("TC008", trained(tmp_path, model, evaluated)) is Verdict.HELD
