"""Parameters around forwards without grad: which they are, and whether these write to them."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from torch import nn

from tests.collect.recording import recording
from traincheck.schema.claims import Needs
from traincheck.schema.observations.models import EvalEffects, EvalWeights, EvalWrites

NEEDS = Needs(states=frozenset({"parameter@evaluation"}), kinds=frozenset({"mark"}))


class Net(nn.Module):
    """What its forward does to its weight by hand, once autograd allows it."""

    def __init__(self, write=None):
        super().__init__()
        self.fc1, self.fc2, self.write = nn.Linear(3, 4), nn.Linear(4, 2), write

    def forward(self, x):
        if self.write is not None and not torch.is_grad_enabled():
            self.write(self.fc1)
        return self.fc2(self.fc1(x))


def add(layer):
    weight = layer.weight
    weight += 0.1


def normalize(layer):
    layer.weight.data /= layer.weight.data.norm()


def mask(layer):
    layer.weight.data *= torch.ones(4, 3).tril()


def train(net, *, before=None, after=None, forwards=3, steps=2, training=False):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        net.train()(torch.randn(5, 3)).sum().backward()
        optimizer.step()
        net.train(training)
        with torch.no_grad():
            for _ in range(forwards):
                if before is not None:
                    before(net)
                net(torch.randn(5, 3))
                if after is not None:
                    after(net)


def test_writes_of_the_forward_are_told(tmp_path):
    with recording(tmp_path / "run", needs=NEEDS) as run:
        train(Net(add))
    assert [(e.step, e.data["names"]) for e in run.marks(EvalWrites.text)] == [
        (0, ["Net.fc1.weight"]),
        (1, ["Net.fc1.weight"]),
    ]
    assert [e.step for e in run.marks(EvalWeights.text)] == [0, 1]


@pytest.mark.parametrize(
    ("net", "options"),
    [
        (Net(), {}),
        (Net(normalize), {}),
        (Net(mask), {}),
        (Net(add), {"forwards": 1}),  # as it may be meant for the first one
        (Net(add), {"training": True}),
        (Net(), {"before": lambda net: add(net.fc1)}),
        (Net(lambda layer: layer.bias.data.add_(0)), {}),
    ],
)
def test_what_is_no_write_of_the_forward_is_not_told(tmp_path, net, options):
    with recording(tmp_path / "run", needs=NEEDS) as run:
        train(net, **options)
    assert not run.marks(EvalWrites.text)
    assert len(run.marks(EvalWeights.text)) == 2


def test_frozen_parameters_and_models_of_no_optimizer_are_left_alone(tmp_path):
    net = Net(add)
    net.fc1.requires_grad_(False)
    teacher = copy.deepcopy(net).eval()
    with recording(tmp_path / "run", needs=NEEDS) as run:
        train(net, before=lambda _: teacher(torch.randn(5, 3)))
    assert not run.marks(EvalWrites.text)
    assert {e.data["model"] for e in run.marks(EvalWeights.text)} == {"Net"}
    assert all(
        set(e.data["values"]) == {"Net.fc2.weight", "Net.fc2.bias"}
        for e in run.marks(EvalWeights.text)
    )


def test_a_forward_that_trains_is_left_alone(tmp_path):
    class Adapting(Net):
        def forward(self, x):
            out = super().forward(x)
            if not torch.is_grad_enabled():
                with torch.enable_grad():
                    super().forward(x).sum().backward()
                self.optimizer.step()
            return out

    net = Adapting()
    net.optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with recording(tmp_path / "run", needs=NEEDS) as run:
        train(net)
    assert not run.marks(EvalWrites.text)


def test_a_forward_that_fails_leaves_nothing_open(tmp_path):
    def fail(layer):
        raise ZeroDivisionError

    net = Net()
    with recording(tmp_path / "run", needs=NEEDS) as run:
        train(net, steps=1)
        net.write = fail
        with torch.no_grad(), pytest.raises(ZeroDivisionError):
            net.eval()(torch.randn(5, 3))
        net.write = None
        train(net)
    assert not run.marks(EvalWrites.text)
    assert not run.marks("fault")


def test_nothing_is_looked_at_before_training_or_when_nobody_asks(tmp_path):
    net = Net()
    with recording(tmp_path / "run", needs=NEEDS) as run, torch.no_grad():
        net.eval()(torch.randn(5, 3))
    assert not run.marks(EvalWeights.text)
    with recording(tmp_path / "other", needs=Needs(kinds=frozenset({"mark"}))) as run:
        train(Net(add))
    assert not run.marks(EvalWeights.text)
    assert not run.marks(EvalWrites.text)


class Normalized(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))


def learn(net):
    net.mean += 0.1


def effects(folder, net, **options):
    with recording(folder / "run", needs=NEEDS) as run:
        train(net, **options)
    return [(e.data["buffers"], e.data["names"], e.data["drawn"]) for e in run.marks(EFFECTS)]


EFFECTS = EvalEffects.text


def test_buffers_that_an_evaluation_writes_are_told(tmp_path):
    written = (1, ["Normalized.mean"], ["torch"])  # `train` draws its inputs
    assert effects(tmp_path, Normalized(), before=learn) == [written] * 2


def test_generators_that_an_evaluation_draws_from_are_told(tmp_path):
    drawn = effects(tmp_path, Net(), before=lambda _: random.random())
    assert drawn == [(0, [], ["python", "torch"])] * 2


@pytest.mark.parametrize("options", [{"forwards": 1}, {"training": True}])
def test_effects_need_two_forwards_in_evaluation_mode(tmp_path, options):
    assert effects(tmp_path, Normalized(), before=learn, **options) == []


def test_an_evaluation_without_effects_has_none(tmp_path):
    x = torch.randn(5, 3)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    with recording(tmp_path / "run", needs=NEEDS) as run:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net(x).sum().backward()
        optimizer.step()
        with torch.no_grad():
            net.eval()(x), net(x)
    (found,) = run.marks(EFFECTS)
    assert (found.data["buffers"], found.data["written"], found.data["drawn"]) == (3, 0, [])
