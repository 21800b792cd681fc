"""Calls within models that are recorded in some training steps, where all who ask are content."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.collect.recording import recording
from traincheck.schema.apis import Families
from traincheck.schema.claims import Needs, within_modules

LINEAR = "torch.nn.modules.linear.Linear.forward"
RELU = "torch.nn.functional.relu"
CROSS_ENTROPY = "torch.nn.functional.cross_entropy"


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x, labels):
        return F.cross_entropy(F.relu(self.fc(x)), labels)


def train_in_steps(steps, evaluate_at):
    model = Inner()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, labels = torch.randn(8, 4), torch.randint(2, (8,))
    for step in range(steps):
        optimizer.zero_grad()
        F.relu(x)
        model(x, labels).backward()
        optimizer.step()
        if step == evaluate_at:
            with torch.no_grad():
                model(x, labels)


def steps_of(run, api):
    return [e.step for e in run.calls(api)]


def test_calls_within_models_are_recorded_in_some_steps_when_that_is_enough(tmp_path):
    names = (LINEAR, RELU, CROSS_ENTROPY, Families.MODULE)
    needs = Needs(calls=within_modules(*names), kinds=frozenset({"step"}))
    with recording(tmp_path / "run", needs=needs) as run:
        train_in_steps(13, evaluate_at=6)
    assert steps_of(run, LINEAR) == [0, 1, 2, 3, 6, 10]
    # The one before the model, and the one in it; in evaluation only the latter
    assert Counter(steps_of(run, RELU)) == {**dict.fromkeys(range(13), 1)} | dict.fromkeys(
        (0, 1, 2, 3, 6, 10), 2
    )
    assert steps_of(run, CROSS_ENTROPY) == sorted([*range(13), 6])
    assert [e.step for e in run.calls(Families.MODULE) if e.root] == sorted([*range(13), 6])
    told = run.marks("process")[0].data
    assert f"{LINEAR}@some" in told["recorded"]["calls"]
    assert CROSS_ENTROPY in told["recorded"]["calls"]
    assert told["some"] == [4, 10]


@pytest.mark.parametrize("more", [Needs(calls=frozenset({LINEAR})), None])
def test_calls_within_models_are_all_recorded_when_anyone_wants_them(tmp_path, more):
    needs = Needs(calls=within_modules(LINEAR, RELU), kinds=frozenset({"step"}))
    with recording(tmp_path / "run", needs=more and needs | more) as run:
        train_in_steps(13, evaluate_at=6)
    assert steps_of(run, LINEAR) == sorted([*range(13), 6])
    assert Counter(steps_of(run, RELU)) == {**dict.fromkeys(range(13), 2), 6: 3}


def test_steps_that_are_sampled_are_whole(tmp_path):
    needs = Needs(calls=within_modules(LINEAR), kinds=frozenset({"step"}))
    with recording(tmp_path / "run", needs=needs, every=7) as run:
        train_in_steps(16, evaluate_at=20)
    assert steps_of(run, LINEAR) == [0, 7, 14]
    assert run.marks("process")[0].data["recorded"]["calls"] == [LINEAR]
