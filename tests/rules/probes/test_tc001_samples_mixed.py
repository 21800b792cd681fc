"""TC001: samples of a batch are mixed."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from tests.checking import fires, quiet
from tests.golden import mentions
from tests.rules.probing import classified, probed, results, trained
from traincheck.schema.findings import Verdict

BROKEN = probed(
    "row_mixing",
    numbers={"change": 0.002, "samples": 32.0, "own_change": 0.4},
    where="Net.head",
    place="/home/me/model.py:31",
    detail={"operation": "torch.Tensor.mean", "class": "Head"},
)


class Dueling(nn.Module):
    def __init__(self, *, is_broken: bool) -> None:
        super().__init__()
        self.body, self.value, self.advantage = nn.Linear(8, 16), nn.Linear(16, 1), nn.Linear(16, 3)
        self.is_broken = is_broken

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.body(x))
        advantage = self.advantage(h)
        mean = advantage.mean() if self.is_broken else advantage.mean(1, keepdim=True)
        return self.value(h) + advantage - mean


class Pairs(nn.Module):
    """A number for each pair of samples: contrastive."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = nn.functional.normalize(self.body(x), dim=1)
        return h @ h.T


class Graph(nn.Module):
    """Rows are nodes, and a matrix says which are neighbors."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.near = nn.Linear(8, 3), torch.rand(16, 16).softmax(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.near @ self.body(x)


def test_fires_on_a_result() -> None:
    finding = fires("TC001", BROKEN)
    assert (finding.first_step, finding.subject.module) == (1, "Net.head")


def test_fires_on_a_mean_over_the_batch(tmp_path: Path) -> None:
    events = trained(tmp_path, Dueling(is_broken=True), classified)
    finding = fires("TC001", events)
    assert finding.first_step == 2
    (first, *_) = results(events, "row_mixing")
    assert first.detail["operation"].endswith("mean")
    assert Path(first.place.partition(":")[0]).name == Path(__file__).name


class Built(nn.Module):
    """Layers that are built on the way, in training mode."""

    def __init__(self, *, is_broken: bool) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 3)
        self.norms = nn.ModuleList(nn.BatchNorm1d(16) for _ in range(2))
        self.is_broken = is_broken

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.body(x)
        for norm in self.norms:
            h = h + torch.tanh((nn.BatchNorm1d(16) if self.is_broken else norm)(h))
        return self.head(h)


def test_names_the_first_place_where_several_mix(tmp_path: Path) -> None:
    events = trained(tmp_path / "a", Built(is_broken=True), classified)
    finding = fires("TC001", events)
    assert mentions(finding, "first in batch_norm() of Built")
    assert Path(next(results(events, "row_mixing")).place.partition(":")[0]) == Path(__file__)
    assert quiet("TC001", trained(tmp_path / "b", Built(is_broken=False), classified)) is (
        Verdict.HELD
    )


def test_quiet_where_the_mean_is_over_the_features(tmp_path: Path) -> None:
    events = trained(tmp_path, Dueling(is_broken=False), classified)
    assert quiet("TC001", events) is Verdict.HELD


def test_quiet_on_batch_norms(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    assert quiet("TC001", trained(tmp_path, model, classified)) is Verdict.HELD


def test_quiet_on_pairs_and_on_graphs(tmp_path: Path) -> None:
    pairs = trained(tmp_path / "pairs", Pairs(), lambda m, _: m(torch.randn(16, 8)).exp().mean())
    assert quiet("TC001", pairs) is Verdict.NOT_TRIGGERED
    graph = trained(tmp_path / "graph", Graph(), classified)
    assert quiet("TC001", graph) is Verdict.NOT_TRIGGERED
    (first, *_) = results(graph, "row_mixing")
    assert "near of the model relates" in first.reason


class Recurrent(nn.Module):
    """A cell by hand, over inputs that have the sequence first."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.Linear(16, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, out = x.new_zeros(x.shape[1], 8), []
        for part in x:
            h = torch.tanh(self.cell(torch.cat((part, h), 1)))
            out.append(self.head(h))
        return torch.stack(out)


def test_quiet_where_the_sequence_comes_first(tmp_path: Path) -> None:
    events = trained(tmp_path, Recurrent(), lambda m, _: m(torch.randn(5, 7, 8)).square().mean())
    assert quiet("TC001", events) is Verdict.NOT_TRIGGERED
