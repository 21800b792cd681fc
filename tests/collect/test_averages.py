"""Models that no optimizer holds, followed for a few steps after their load."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tests.collect.recording import recording
from traincheck.schema.claims import Needs
from traincheck.schema.observations.loads import LoadedAverage

CHECKPOINT = Needs(kinds=frozenset({"checkpoint"}))


class Average(nn.Module):
    def __init__(self, model, *, count=None):
        super().__init__()
        self.model = copy.deepcopy(model).requires_grad_(False)
        if count is not None:
            self.register_buffer("count", torch.tensor(count))

    @torch.no_grad()
    def update(self, model, decay):
        for mine, theirs in zip(self.model.parameters(), model.parameters()):
            mine.lerp_(theirs, 1 - decay)


def train(decays, *, held=False, other=False, swapped=False, **options):
    """Loads an average, and updates it after each step; None where it is not updated."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    average = Average(nn.Linear(3, 4) if other else model, **options)
    state = {key: value + 1 for key, value in average.state_dict().items()}
    parameters = [*model.parameters(), *(average.parameters() if held else ())]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    average.load_state_dict(state)
    for decay in decays:
        optimizer.zero_grad()
        model(torch.randn(5, 3)).sum().backward()
        optimizer.step()
        if decay is not None:
            average.update(model, decay)
        if swapped:
            model.load_state_dict(average.model.state_dict())
    optimizer.zero_grad()
    model(torch.randn(5, 3))


def marks(tmp_path, decays, needs=None, **options):
    with recording(tmp_path / "run", needs=needs) as run:
        train(decays, **options)
    return run.marks(LoadedAverage.text)


def test_a_copy_is_told_from_an_average(tmp_path):
    found = marks(tmp_path, [0.0, 0.5, 0.0, 0.5, 0.5])
    assert [(e.step, e.data["equal"]) for e in found] == [
        (0, True), (1, False), (2, True), (3, False),
    ]  # fmt: skip
    assert {(e.data["model"], e.data["of"], e.data["parameters"]) for e in found} == {
        ("Average", "Sequential", 6)
    }


def test_a_trained_model_that_becomes_the_average_is_no_copy_of_it(tmp_path):
    """Copied in for evaluation, which a step may end in."""
    found = marks(tmp_path, [0.5, 0.5], swapped=True)
    assert [(e.step, e.data["equal"]) for e in found] == [(0, None), (1, None)]


def test_only_where_it_changes(tmp_path):
    assert [e.step for e in marks(tmp_path, [None, 0.5, None])] == [1]


@pytest.mark.parametrize("options", [{"held": True}, {"other": True}, {"count": 3}])
def test_others_are_not_followed(tmp_path, options):
    """Trained itself; of another structure; with a counter among its buffers."""
    decays = [None] * 3 if options.get("other") else [0.0, 0.5, 0.5]
    assert marks(tmp_path, decays, **options) == []


def test_recorded_where_a_check_asks_for_it(tmp_path):
    assert marks(tmp_path, [0.0, 0.5], CHECKPOINT) == []
    wanted = CHECKPOINT | Needs(states=frozenset({LoadedAverage.need}))
    assert [e.data["equal"] for e in marks(tmp_path, [0.0, 0.5], wanted)] == [True, False]
