"""TC003: the place in the batch matters."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from tests.checking import fires, quiet
from tests.rules.probing import classified, probed, results, trained
from traincheck.schema.findings import Verdict

BROKEN = probed(
    "batch_place",
    numbers={"change": 1.4, "samples": 16.0},
    where="Net.pos",
    place="/home/me/model.py:12",
    detail={"operation": "torch.Tensor.add"},
)


class Positions(nn.Module):
    def __init__(self, *, is_broken: bool) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 3)
        self.places = nn.Parameter(torch.randn(16, 10, 8))
        self.is_broken = is_broken

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = self.places[:, :1] if self.is_broken else self.places[:1]
        return self.head(torch.tanh(self.body(x) + places).mean(1))


def loss(model: nn.Module, step: int) -> torch.Tensor:
    return nn.functional.cross_entropy(model(torch.randn(16, 10, 8)), torch.randint(0, 3, (16,)))


def test_fires_on_a_result() -> None:
    assert fires("TC003", BROKEN).subject.module == "Net.pos"


def test_fires_on_positions_by_row(tmp_path: Path) -> None:
    events = trained(tmp_path, Positions(is_broken=True), loss)
    assert fires("TC003", events).first_step == 2
    (first, *_) = results(events, "batch_place")
    assert first.place.rpartition("/")[2].startswith(Path(__file__).name)


def test_quiet_on_positions_in_the_sequence(tmp_path: Path) -> None:
    assert quiet("TC003", trained(tmp_path, Positions(is_broken=False), loss)) is Verdict.HELD


def test_quiet_on_plain_classifiers(tmp_path: Path) -> None:
    assert (
        quiet("TC003", trained(tmp_path, nn.Sequential(nn.Linear(8, 3)), classified))
        is Verdict.HELD
    )


class Noisy(nn.Module):
    """Draws noise of the shape of its inputs in eval mode too, as an actor or a mask does."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x) + 0.1 * torch.distributions.Normal(0.0, 1.0).sample((len(x), 3))


def test_not_observable_where_noise_is_drawn(tmp_path: Path) -> None:
    events = trained(tmp_path, Noisy(), classified)
    assert quiet("TC003", events) is Verdict.NOT_TRIGGERED
    (first, *_) = results(events, "batch_place")
    assert "random numbers" in first.reason
