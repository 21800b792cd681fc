"""TC003: the place in the batch matters."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.checking import fires, quiet
from tests.golden import mentions
from tests.rules.probing import Loss, classified, probed, results, trained
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


class Sorted(nn.Module):
    """Sorts rows by their lengths, and puts the results back. is_broken: not the lengths."""

    def __init__(self, *, is_broken: bool) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 3)
        self.is_broken = is_broken

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        lengths = 1 + (x[:, :, 0] > 0).sum(1)
        ordered, order = lengths.sort(descending=True)
        h = torch.tanh(self.body(x[order])).sum(1)[order.argsort()]
        out: torch.Tensor = self.head(h / (ordered if self.is_broken else lengths)[:, None])
        return out


def test_leaves_the_cause_open(tmp_path: Path) -> None:
    finding = fires("TC003", trained(tmp_path / "a", Sorted(is_broken=True), loss))
    assert mentions(finding, "of the largest value, first in", "sorted and are not put back")
    assert quiet("TC003", trained(tmp_path / "b", Sorted(is_broken=False), loss)) is Verdict.HELD


def test_quiet_on_positions_in_the_sequence(tmp_path: Path) -> None:
    assert quiet("TC003", trained(tmp_path, Positions(is_broken=False), loss)) is Verdict.HELD


def test_quiet_on_plain_classifiers(tmp_path: Path) -> None:
    assert (
        quiet("TC003", trained(tmp_path, nn.Sequential(nn.Linear(8, 3)), classified))
        is Verdict.HELD
    )


NODES = 18
NEAR = (torch.rand(NODES, NODES, generator=torch.Generator().manual_seed(1)) < 0.3).float()
EDGES = NEAR.nonzero().T.contiguous()


class Graph(nn.Module):
    """Rows are nodes of one graph. kind: how it knows which are neighbors."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 3)
        self.kind = kind
        if kind == "matrix":
            self.register_buffer("near", NEAR / NEAR.sum(1, keepdim=True).clamp_min(1))
        elif kind == "edges":
            self.edges = EDGES
        elif kind == "places":
            self.places = nn.Parameter(torch.randn(NODES, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.body(x))
        if self.kind == "matrix":
            h = self.near @ h
        elif self.kind == "places":
            h = h + self.places - h.mean(0)
        else:
            from_, to = EDGES
            h = torch.zeros_like(h).index_add(0, to, h[from_])
        out: torch.Tensor = self.head(h)
        return out


FEATURES = torch.randn(NODES, 8, generator=torch.Generator().manual_seed(2))


def same_rows(model: nn.Module, step: int) -> torch.Tensor:
    return nn.functional.cross_entropy(model(FEATURES), torch.arange(NODES) % 3)


def noisy_rows(model: nn.Module, step: int) -> torch.Tensor:
    noise = 0.1 * torch.randn(NODES, 8)
    return nn.functional.cross_entropy(model(FEATURES + noise), torch.arange(NODES) % 3)


@pytest.mark.usefixtures("every_experiment")
@pytest.mark.parametrize(
    ("kind", "loss", "reason"),
    [
        ("matrix", noisy_rows, "near of the model relates"),
        ("edges", noisy_rows, "edges of the model relates"),
        ("outside", same_rows, "the same in each call"),
    ],
)
def test_not_observable_where_rows_are_nodes(
    kind: str, loss: Loss, reason: str, tmp_path: Path
) -> None:
    events = trained(tmp_path, Graph(kind), loss)
    assert quiet("TC003", events) is Verdict.NOT_TRIGGERED
    assert quiet("TC001", events) is Verdict.NOT_TRIGGERED
    for name in ("batch_place", "row_mixing"):
        (first, *_) = results(events, name)
        assert reason in first.reason


def test_not_observable_where_rows_can_be_nodes(tmp_path: Path) -> None:
    events = trained(tmp_path, Graph("places"), same_rows)
    assert quiet("TC003", events) is Verdict.NOT_TRIGGERED
    (first, *_) = results(events, "batch_place")
    assert "the same in each call" in first.reason


def test_fires_where_the_rows_of_another_call_were_others(tmp_path: Path) -> None:
    def loss(model: nn.Module, step: int) -> torch.Tensor:
        x = FEATURES[: 12 if step == 0 else NODES]
        return nn.functional.cross_entropy(model(x), torch.arange(len(x)) % 3)

    class Ranked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(x) + torch.linspace(0, 1, len(x))[:, None]

    fires("TC003", trained(tmp_path, Ranked(), loss))


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
