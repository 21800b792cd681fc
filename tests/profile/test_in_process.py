"""`traincheck.profile`: a block in this process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import traincheck
from tests.collect.recording import recording
from tests.profile.networks import NETWORKS, of_logits
from tests.profile.profiling import needs_nodes, train
from traincheck.collect.active_session import CURRENT
from traincheck.errors import UsageError


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 2))


@needs_nodes
def test_one_step(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    with traincheck.profile(model, depth=3) as p:
        of_logits(model(torch.ones(3, 4))).backward()
        optimizer.step()
    tree = p.tree()
    info = tree["Sequential"]["info"]
    assert info["calls"] == 1
    assert info["flops"] == 2 * 3 * (4 * 8 + 8 * 2) + 2 * 3 * (4 * 8 + 2 * 8 * 2)
    assert tree["Sequential"]["children"]["0"]["info"]["type"] == "Linear"
    assert p.peak.held_by["states"] == 8 * sum(x.numel() for x in model.parameters()) + 4 * 4
    assert "Linear" in p.table(sort="retained-self")
    assert p.origin is None
    p.to_json(tmp_path / "a.json")
    assert json.loads((tmp_path / "a.json").read_text())["tree"] == tree
    assert CURRENT.session is None


def test_each_step_of_a_loop_is_one(tmp_path: Path) -> None:
    make, loss_of = NETWORKS["moe"]
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with traincheck.profile(model, steps=3) as p:
        train(model, optimizer, loss_of, 5)
    assert [step.number for step in p.profile.steps] == [0, 1, 2]


def test_a_forward_pass_alone() -> None:
    model = net().eval()
    with traincheck.profile(model) as p, torch.no_grad():
        model(torch.ones(3, 4))
    info = p.tree()["Sequential"]["info"]
    assert info["calls"] == 1
    assert info["retained"] == 0
    assert info["total_forward_ms"] > 0
    assert p.tree()["Sequential"]["children"]["0"]["info"]["flops"] == 2 * 3 * 4 * 8


def test_within_a_recording_that_goes_on(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recording(tmp_path) as run:
        train(model, optimizer, lambda m: of_logits(m(torch.ones(3, 4))), 2)
        with traincheck.profile(model) as p:
            train(model, optimizer, lambda m: of_logits(m(torch.ones(3, 4))), 1)
        train(model, optimizer, lambda m: of_logits(m(torch.ones(3, 4))), 1)
    assert p.tree()["Sequential"]["info"]["calls"] == 1
    assert not run.of("profile")
    assert len(run.of("step")) == 4


def test_it_can_be_used_again_after_an_exception() -> None:
    model = net()
    profile = traincheck.profile(model)
    with pytest.raises(KeyError), profile:
        raise KeyError
    with pytest.raises(UsageError, match="no step was profiled"):
        profile.tree()
    with profile:
        model(torch.ones(1, 4))
    assert profile.tree()["Sequential"]["info"]["calls"] == 1


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(UsageError), traincheck.profile(3):
        pass
    with pytest.raises(UsageError, match="steps is 0"):
        traincheck.profile(net(), steps=0)


def test_an_unknown_column_names_the_known_ones() -> None:
    model = net()
    with traincheck.profile(model) as p:
        model(torch.ones(1, 4))
    with pytest.raises(UsageError, match="did you mean retained"):
        p.table(sort="retaind")
