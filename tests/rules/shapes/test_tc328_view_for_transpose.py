"""TC328: view() in place of transpose(), which mixes the samples of a batch."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.checking import fires, net, quiet
from tests.collect.recording import recording
from tests.golden import Golden, mentions
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict

Shape = tuple[int, ...]
VIEW = "torch.Tensor.view"


def tensor(shape: Shape) -> dict[str, object]:
    return {"dtype": "float32", "shape": [*shape], "device": "cpu"}


def run(
    old: Shape,
    new: Shape,
    *,
    steps: int = 3,
    size: int = 32,
    stage: str = "train",
    scores: Shape = (32, 10),
) -> list:
    trace = net()
    for _ in range(steps):
        trace.begin_step().batch(size=size).zero_grad()
        trace.call(
            VIEW,
            module="Net",
            args={"0": tensor(old)},
            result=tensor(new),
            grad_enabled=stage == "train",
            where="net.py:3",
        )
        trace.forward(batch_size=size)
        trace.call("torch.nn.functional.cross_entropy", args={"input": tensor(scores)})
        trace.backward().optimizer_step()
    return trace.end_step().build()


BROKEN = run((2, 32, 8), (32, 16), steps=5)


def test_fires_once_at_the_first_step(golden: Golden) -> None:
    finding = fires("TC328", BROKEN)
    assert (finding.first_step, finding.violations) == (0, 1)
    assert finding.subject.module == "Net"
    golden(finding)
    assert mentions(finding, "view()", 2, 32, 8, 16)


@pytest.mark.parametrize(
    ("old", "new", "mixed"),
    [
        ((32, 10, 8), (10, 32, 8), 32),
        ((32, 3, 28, 28), (32, 784, 3), 3),
        ((32, 10, 64), (32, 64, 10), 10),
        ((32, 16, 32), (32, 4, 16, 8), 16),
    ],
    ids=["samples", "channels", "slices", "positions"],
)
def test_tells_what_is_mixed(old: Shape, new: Shape, mixed: int, golden: Golden) -> None:
    assert mentions(golden(fires("TC328", run(old, new))).title, mixed)


@pytest.mark.parametrize("places", [(16, 16), (16, 10), (7,)])
def test_tells_which_scores_are_torn(places: Shape, golden: Golden) -> None:
    rows = (32 * prod(places), 2)
    finding = fires("TC328", run((32, 2, *places), rows, scores=rows))
    golden(finding)
    assert mentions(finding, 2)


@pytest.mark.parametrize(
    "events",
    [
        run((32, 2, 16, 16), (8192, 2)),  # something else than scores
        run((32, 16, 16, 2), (8192, 2), scores=(8192, 2)),
        run((32, 16, 32), (32, 16, 4, 8)),
        run((2, 32, 8), (32, 16), steps=1),
        run((64, 3, 28, 28), (64, 784, 3)),  # no batch
        run((32, 6, 10), (32, 4, 15)),  # another order of these dims would not give that
        run((32, 6, 10), (32, 10, 2, 3)),
        run((32, 16, 64), (32, 64, 16)),  # each quarter is a separate row
        run((2, 32, 8), (32, 16), size=64),  # a table that is no batch
        run((2, 32, 8), (32, 16), stage="eval"),
        run((32, 2, 8), (32, 16)),
        net().steps(3).build(),
    ],
)
def test_quiet(events: list[Event]) -> None:
    assert quiet("TC328", events) in (Verdict.HELD, Verdict.NOT_TRIGGERED)


class Reader(nn.Module):
    def __init__(self, last: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.rnn = nn.GRU(5, 8, bidirectional=True, batch_first=True)
        self.out, self.last = nn.Linear(16, 3), last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.last(self.rnn(x)[1]))


def viewed(states: torch.Tensor) -> torch.Tensor:
    return states.view(-1, 16)


def reshaped(states: torch.Tensor) -> torch.Tensor:
    return torch.reshape(states, (-1, 16))


def exchanged(states: torch.Tensor) -> torch.Tensor:
    return states.transpose(0, 1).reshape(-1, 16)


@pytest.mark.parametrize("loads", [True, False])
@pytest.mark.parametrize(
    ("last", "is_wrong"), [(viewed, True), (reshaped, True), (exchanged, False)]
)
def test_recorded_runs(tmp_path: Path, last, loads: bool, is_wrong: bool) -> None:
    x, y = torch.randn(64, 7, 5), torch.randint(3, (64,))
    batches = DataLoader(TensorDataset(x, y), 16) if loads else [(x[:16], y[:16])] * 4
    model = Reader(last)
    with recording(tmp_path / "run") as run:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for inputs, labels in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
    if is_wrong:
        finding = fires("TC328", run.events)
        assert finding.subject.module == "Reader"
        assert finding.first_step == 0
    else:
        assert quiet("TC328", run.events) is Verdict.NOT_TRIGGERED


class Attention(nn.Module):
    def __init__(self, is_wrong: bool) -> None:
        super().__init__()
        self.first, self.last, self.is_wrong = nn.Linear(5, 32), nn.Linear(32, 3), is_wrong

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        batch, time, size = x.shape
        if self.is_wrong:
            heads = x.view(batch, 4, time, size // 4)
        else:
            heads = x.view(batch, time, 4, size // 4).transpose(1, 2)
        heads = nn.functional.scaled_dot_product_attention(heads, heads, heads)
        return self.last(heads.transpose(1, 2).reshape(batch, time, size).mean(1))


class Map(nn.Module):
    """A class for each pixel of a row of them, as a matrix."""

    def __init__(self, is_wrong: bool) -> None:
        super().__init__()
        self.conv, self.is_wrong = nn.Conv2d(1, 2, 1), is_wrong

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.conv(x[:, None])
        return (scores if self.is_wrong else scores.permute(0, 2, 3, 1)).reshape(-1, 2)


@pytest.mark.parametrize("model", [Attention, Map])
@pytest.mark.parametrize("is_wrong", [True, False])
def test_recorded_models(
    tmp_path: Path, model: Callable[[bool], nn.Module], is_wrong: bool
) -> None:
    net = model(is_wrong)
    with recording(tmp_path / "run") as run:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            scores = net(torch.randn(6, 16, 5))
            nn.functional.cross_entropy(scores, torch.randint(2, (len(scores),))).backward()
            optimizer.step()
    if is_wrong:
        assert fires("TC328", run.events).subject.module == type(net).__name__
    else:
        assert quiet("TC328", run.events) in (Verdict.HELD, Verdict.NOT_TRIGGERED)
