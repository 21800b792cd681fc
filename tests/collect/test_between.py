"""Parameters between two steps of an optimizer: who else wrote to them, and when that is asked."""

from __future__ import annotations

import torch
from torch import nn

from tests.collect.recording import recording
from traincheck.schema.claims import Needs
from traincheck.schema.observations.gradients import ExternalWrites

NEEDS = Needs(states=frozenset({"parameter@between"}), kinds=frozenset({"mark"}))


def train(write=None, *, steps=3, second=None, net=None):
    net = net or nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1)]
    if second is not None:
        optimizers.append(second(net))
    for _ in range(steps):
        net.zero_grad()
        net(torch.randn(5, 3)).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
        if write is not None:
            with torch.no_grad():
                write(net)


def clamp(net):
    net[0].weight.clamp_(-0.01, 0.01)


def looks(tmp_path, *given, needs=NEEDS, **options):
    with recording(tmp_path / ("all" if needs is None else "some"), needs=needs) as run:
        train(*given, **options)
    return [
        (mark.step, mark.data["owner"], mark.data["names"])
        for mark in run.marks(ExternalWrites.text)
    ]


def test_what_is_written_to_is_named(tmp_path):
    told = [(step, "opt0", ["Sequential.0.weight"]) for step in (1, 2)]
    assert looks(tmp_path, clamp) == told
    assert looks(tmp_path, clamp, needs=None) == told


def test_nothing_is_when_only_the_optimizer_writes(tmp_path):
    assert looks(tmp_path) == [(1, "opt0", []), (2, "opt0", [])]


def test_what_two_optimizers_hold_is_left_alone(tmp_path):
    def other(net):
        return torch.optim.SGD(net[1].parameters(), lr=0.1)

    assert all(names == [] for _, _, names in looks(tmp_path, second=other))


def test_what_the_optimizer_does_not_update_is_left_alone(tmp_path):
    """As the target network of BYOL, which learner.parameters() holds, too."""

    def follow(net):
        net[2].weight.lerp_(net[0].weight, 0.1)

    class Pair(nn.Sequential):
        def forward(self, x):
            with torch.no_grad():
                self[2](x)
            return self[1](self[0](x))

    net = Pair(nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(3, 4))
    assert looks(tmp_path, follow, net=net) == [(1, "opt0", []), (2, "opt0", [])]


def test_most_steps_are_not_looked_at(tmp_path):
    assert [step for step, _, _ in looks(tmp_path, steps=24)] == [1, 2, 3, 4, 11, 22]


def test_without_need_nothing_is(tmp_path):
    assert looks(tmp_path, clamp, needs=Needs(kinds=frozenset({"mark"}))) == []
