"""Programs of many models or unused layers: looks left out, and what they would have found."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tests.collect.recording import recording
from traincheck.collect.tensors.sums import norms_of
from traincheck.collect.tracking import scans
from traincheck.collect.tracking.change_detector import ChangeDetector


def models(count, kind=torch.optim.Adam, **options):
    torch.manual_seed(0)
    made = [nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)) for _ in range(count)]
    return made, [kind(model.parameters(), lr=0.01, **options) for model in made]


X = torch.linspace(0, 1, 6).reshape(2, 3)


def in_turn(steps=4, **options):
    made, optimizers = models(4, **options)
    for _ in range(steps):
        for model, optimizer in zip(made, optimizers):
            optimizer.zero_grad()
            model(X).sum().backward()
            optimizer.step()


def in_turn_fused():
    in_turn(fused=True)


def all_at_once():
    made, optimizers = models(4)
    for _ in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        losses = [model(X).sum() for model in made]
        for loss in losses:
            loss.backward()
        for optimizer in optimizers:
            optimizer.step()


def cleared_by_hand():
    made, optimizers = models(3)
    for _ in range(3):
        losses = [model(X).sum() for model in made]
        for model, loss, optimizer in zip(made, losses, optimizers):
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad.data.zero_()
            loss.backward()
            optimizer.step()


def cleared_afterwards():
    made, optimizers = models(3)
    for step in range(4):
        for model, optimizer in zip(made, optimizers):
            model(X).sum().backward()
            optimizer.step()
            for parameter in model.parameters():
                if step % 2:
                    parameter.grad = None
                else:
                    parameter.grad.zero_()


def clamped():
    """As the critic of a Wasserstein GAN is, which the generator's loss passes through."""
    made, optimizers = models(2)
    critic, other = made[0], nn.Linear(3, 3)
    optimizers[1] = torch.optim.Adam(other.parameters(), lr=0.01)
    for _ in range(4):
        optimizers[0].zero_grad()
        critic(X).sum().backward()
        optimizers[0].step()
        for parameter in critic.parameters():
            parameter.data.clamp_(-0.1, 0.1)
        optimizers[1].zero_grad()
        critic(other(X)).sum().backward()
        optimizers[1].step()


def averaged():
    made, optimizers = models(3)
    means = [copy.deepcopy(model) for model in made]
    for mean in means:
        with torch.no_grad():
            mean(X)
    for _ in range(4):
        for model, mean, optimizer in zip(made, means, optimizers):
            optimizer.zero_grad()
            (model(X) - mean(X).detach()).square().sum().backward()
            optimizer.step()
            for theirs, ours in zip(mean.parameters(), model.parameters()):
                theirs.data.mul_(0.9).add_(ours.data, alpha=0.1)


def frozen_and_copied():
    made, optimizers = models(3)
    for step in range(4):
        for index, (model, optimizer) in enumerate(zip(made, optimizers)):
            optimizer.zero_grad()
            model(X).sum().backward()
            optimizer.step()
            if index == 1:
                made[0][0].weight.requires_grad_(step % 2 == 0)
                made[2].load_state_dict(model.state_dict())


PROGRAMS = [
    in_turn,
    in_turn_fused,
    all_at_once,
    cleared_by_hand,
    cleared_afterwards,
    clamped,
    averaged,
    frozen_and_copied,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_no_change_is_missed_or_told_of_another_call(tmp_path, monkeypatch, program):
    told = []
    for index in range(2):
        with monkeypatch.context() as patch:
            if index:
                patch.setattr(scans, "due", lambda em, live, is_kept, names: live)
            with recording(tmp_path / str(index)) as run:
                program()
        fields = ("step", "role", "name", "change", "after")
        told.append(
            [
                (*(getattr(e, field) for field in fields), e.summary and e.summary.fingerprint)
                for e in run.of("state")
            ]
        )
    assert told[0] == told[1]
    assert len(told[0]) > 50


def test_looks_are_not_a_square_of_the_models(tmp_path, monkeypatch):
    look_all, looked = ChangeDetector.scan_all, []

    def counted(self, em, found, after):
        found = list(found)
        looked.append(len(found))
        return look_all(self, em, found, after)

    monkeypatch.setattr(ChangeDetector, "scan_all", counted)
    counts = []
    for count in (4, 16):
        with recording(tmp_path / str(count)):
            made, optimizers = models(count)
            for step in range(12):
                if step == 11:
                    looked.clear()
                for model, optimizer in zip(made, optimizers):
                    optimizer.zero_grad()
                    model(X).sum().backward()
                    optimizer.step()
        counts.append(sum(looked))
    assert counts[1] < 4.5 * counts[0]


class Experts(nn.Module):
    """One of many layers is used in a step, and the first one never."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(20))

    def forward(self, x, index):
        return self.layers[1 + index % 3](x)


@pytest.mark.parametrize("clears", [True, False], ids=["none", "zeros"])
def test_what_does_not_change_costs_little(tmp_path, monkeypatch, clears):
    look, taken, closely = ChangeDetector.scan, [], []

    def looked(self, em, variable, tensor, after):
        closely.append(variable.name)
        return look(self, em, variable, tensor, after)

    def took(tensors):
        taken.append(len(tensors))
        return norms_of(tensors)

    monkeypatch.setattr(ChangeDetector, "scan", looked)
    monkeypatch.setattr(scans, "norms_of", took)
    with recording(tmp_path) as run:
        torch.manual_seed(0)
        model = Experts()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(24):
            if step == 12:
                taken.clear()
                closely.clear()
            optimizer.zero_grad(set_to_none=clears)
            model(X[:, :2], step).sum().backward()
            optimizer.step()
            if step == 20:
                model.layers[0].weight.data[0, 0] += 1
    assert max(taken) <= (3 if clears else 7)
    assert len(closely) < 12 * (6 if clears else 16)
    changed = [
        e for e in run.of("state") if (e.role, e.name) == ("parameter", "Experts.layers.0.weight")
    ]
    assert [(e.change, e.step) for e in changed] == [("new", 0), ("content", 21)]
    assert changed[1].summary.stats["norm"] > 0


def test_a_model_may_die_while_parameters_are_looked_at(tmp_path, monkeypatch):
    """As when the collector runs between a look and the search for why an update had no effect."""
    look_all, doomed = ChangeDetector.scan_all, []

    def last_seen(*args):
        look_all(*args)
        doomed.clear()

    monkeypatch.setattr(ChangeDetector, "scan_all", last_seen)
    with recording(tmp_path) as run:
        made, optimizers = models(2, torch.optim.SGD)
        for model, optimizer in zip(made, optimizers):
            optimizer.param_groups[0]["lr"] = 0.0
            model(X).sum().backward()
        doomed.append(made.pop(0))
        del model
        optimizer.step()
    assert not doomed
    assert run.changes("gradient")
