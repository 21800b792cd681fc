"""Gradients that an update which was not recorded has left, told when the next one begins."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.collect.recording import recording
from traincheck.collect.observers import outside_updates
from traincheck.schema.observations.gradients import UnclearedGradients

EVERY = 3
ALL = ["Sequential.0.bias", "Sequential.0.weight", "Sequential.2.bias", "Sequential.2.weight"]


def clear_by_hand(model, _):
    for parameter in model.parameters():
        parameter.grad = None


def zero_behind_the_back(model, _):
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.data.zero_()


def halve(model, _):
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.data.mul_(0.5)


def zero_the_head(model, _):
    if model[2].weight.grad is not None:
        nn.Module.zero_grad(model[2], set_to_none=False)


def nothing(*_):
    """Leaves gradients as they are."""


def train(*, begin=nothing, end=nothing, accumulate=1, steps=8, wide=8):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(wide, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    count = steps * accumulate
    batches = DataLoader(TensorDataset(torch.randn(count, wide)), batch_size=1)
    for number, (x,) in enumerate(batches):
        if number % accumulate == 0:
            begin(model, optimizer)
        model(x).pow(2).sum().backward()
        if (number + 1) % accumulate == 0:
            optimizer.step()
            end(model, optimizer)


def told(run):
    return [
        (mark.step, tuple(mark.data["names"]), tuple(mark.data["owners"]))
        for mark in run.marks(UnclearedGradients.text)
    ]


def clear(_, optimizer):
    optimizer.zero_grad()


def zero(_, optimizer):
    optimizer.zero_grad(set_to_none=False)


@pytest.mark.parametrize("needs", [None, "selective"])
@pytest.mark.parametrize("device", ["near", "far"])
def test_what_nobody_has_cleared_is_told(tmp_path, request, monkeypatch, device, needs):
    if device == "far":
        request.getfixturevalue("far")
        monkeypatch.setattr(outside_updates, "is_on_device", lambda tensor: True)
    with recording(tmp_path, every=EVERY, needs=needs and selective()) as run:
        train(wide=3000)  # a probe does not read all of such a layer
    assert told(run) == [(step, tuple(ALL), ("opt0",)) for step in (3, 6)]


def selective():
    from traincheck.rules.table import RULES
    from traincheck.schema.claims import Needs

    code = {rule.info.code: rule for rule in RULES}
    needs: Needs = code["TC201"].needs
    return needs


@pytest.mark.parametrize("hook", [clear, zero, clear_by_hand, zero_behind_the_back, halve])
@pytest.mark.parametrize("place", ["begin", "end"])
@pytest.mark.parametrize("device", ["near", "far"])
def test_what_was_cleared_or_written_to_is_not(tmp_path, request, monkeypatch, hook, place, device):
    if device == "far":
        request.getfixturevalue("far")
        monkeypatch.setattr(outside_updates, "is_on_device", lambda tensor: True)
    with recording(tmp_path, every=EVERY) as run:
        train(**{place: hook})
    is_kept = hook is halve and place == "end"  # that is a sum of gradients all the same
    assert bool(told(run)) is is_kept


def test_zeros_are_not_told(tmp_path):
    with recording(tmp_path, every=EVERY) as run:
        train(end=zero_the_head)
    assert {names for _, names, _ in told(run)} == {tuple(ALL[:2])}


def test_the_first_backward_of_an_accumulation_tells(tmp_path):
    with recording(tmp_path / "bad", every=EVERY) as bad:
        train(accumulate=3)
    with recording(tmp_path / "good", every=EVERY) as good:
        train(accumulate=3, begin=clear)
    assert [step for step, *_ in told(bad)] == [3, 6]
    assert told(good) == []


def test_steps_that_follow_recorded_ones_tell_nothing(tmp_path):
    with recording(tmp_path / "all") as whole:
        train()
    with recording(tmp_path / "first", every=100, warmup=5) as first:
        train()
    assert told(whole) == told(first) == []


def test_gradients_that_no_update_has_used_are_not_told(tmp_path):
    """Two models: the one waits for more batches while the other steps."""
    torch.manual_seed(0)
    with recording(tmp_path, every=2) as run:
        models = nn.Linear(4, 2), nn.Linear(4, 2)
        often, seldom = (torch.optim.SGD(m.parameters(), lr=0.1) for m in models)
        for number in range(16):
            often.zero_grad()
            x = torch.randn(3, 4)
            sum(m(x).pow(2).sum() for m in models).backward()
            often.step()
            if number % 4 == 3:
                seldom.step()
                seldom.zero_grad()
    assert all(owners == ("opt0",) for _, _, owners in told(run))


def test_gradients_that_came_after_the_update_are_not_told(tmp_path):
    with recording(tmp_path, every=EVERY) as run:
        train(end=lambda model, _: model[0].weight.pow(2).sum().backward())
    assert told(run) == []
