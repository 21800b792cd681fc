"""How far the first updates of a run move its parameters."""

import pytest
import torch
from torch import nn

from tests.collect.recording import recording
from traincheck.collect.stats.tensor_stats import STEPS, UpdateSize
from traincheck.schema.claims import Needs

ASKED = Needs(
    states=frozenset({"parameter@step"}),
    kinds=frozenset({"optimizer", "step"}),
    stats=frozenset({"parameter", "update"}),
)


def train(steps: int, dtype: torch.dtype = torch.float32) -> None:
    torch.manual_seed(0)
    net = nn.Linear(6, 4).to(dtype)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.randn(8, 6, dtype=dtype)).pow(2).mean().backward()
        optimizer.step()


def moved(run, name: str = "Linear.weight") -> dict[int, float]:
    looks = [e for e in run.of("state") if e.name == name and e.change == "content"]
    told = {e.step: e.summary.stats for e in looks if e.role == "parameter" and e.summary.stats}
    return {step: stats["moved"] for step, stats in told.items() if "moved" in stats}


@pytest.mark.parametrize("needs", [None, ASKED])
def test_the_first_updates_are_told_and_no_later_ones(tmp_path, needs):
    with recording(tmp_path / "run", needs=needs) as run:
        train(STEPS + 3)
    assert sorted(moved(run)) == list(range(STEPS))
    assert moved(run)[0] == pytest.approx(0.01, rel=1e-3)  # Adam: by the learning rate


def test_who_does_not_ask_gets_none(tmp_path):
    less = Needs(states=ASKED.states, kinds=ASKED.kinds, stats=frozenset({"parameter"}))
    with recording(tmp_path / "run", needs=less) as run:
        train(2)
    assert moved(run) == {}


def test_what_rounds_updates_away_is_left_out(tmp_path):
    with recording(tmp_path / "run") as run:
        train(2, torch.bfloat16)
    assert moved(run) == {}


@pytest.mark.parametrize(
    "odd",
    [
        nn.Parameter(torch.empty(0)),
        nn.Parameter(torch.ones(4, 3).t()),
        nn.Parameter(torch.ones(4), requires_grad=False),
        nn.Parameter(torch.ones(4, device="meta")),
    ],
)
def test_odd_tensors_are_left_alone(odd):
    moves = UpdateSize(is_requested=True)
    moves.begin_step(0)
    moves.before([odd])
    assert not moves.has_any
    assert moves.added(b'{"norm":1.0}', odd) == b'{"norm":1.0}'


def test_a_large_parameter_is_sampled_and_a_broken_one_is_not_told():
    large, broken = nn.Parameter(torch.zeros(100_000)), nn.Parameter(torch.zeros(3))
    moves = UpdateSize(is_requested=True)
    moves.begin_step(0)
    moves.before([large, broken])
    with torch.no_grad():
        large += 0.5
        broken /= 0
    assert moves.added(b"", large) == b'{"moved":0.5}'
    assert moves.added(b'{"nonfinite":3}', broken) == b'{"nonfinite":3}'
    assert not moves.has_any
