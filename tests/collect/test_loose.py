"""Tensors that an optimizer holds and no module owns: looked at as parameters of models are."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from tests.checking import fires, quiet, report_of
from tests.collect.recording import recording
from traincheck.schema.findings import Verdict


def fit(held, optimizer=None, *, steps=4, clears=True, updates=True):
    """Gradients differ from step to step."""
    optimizer = optimizer or torch.optim.Adam(held, lr=0.1)
    for _ in range(steps):
        if clears:
            optimizer.zero_grad()
        sum((tensor * torch.randn(tensor.shape)).sum() for tensor in held).backward()
        if updates:
            optimizer.step()
    return optimizer


def loose(*sizes):
    return [torch.zeros(size, requires_grad=True) for size in sizes]


def test_changes_of_tensors_and_of_their_gradients_are_told(tmp_path):
    with recording(tmp_path) as run:
        fit(loose(3, 5))
    names = {"opt0[0].0", "opt0[0].1"}
    new = [event for event in run.of("state") if event.change == "new"]
    assert {e.name for e in new if e.role == "parameter"} == names
    (created,) = run.of("optimizer")
    assert list(created.groups[0].ids) == [e.identity for e in new if e.role == "parameter"]
    for role, change in (("parameter", "content"), ("gradient", "set"), ("gradient", "cleared")):
        found = [e for e in run.of("state") if (e.role, e.change) == (role, change)]
        assert {e.name for e in found} == names
        assert len(found) == (6 if change == "cleared" else 8)


@pytest.mark.parametrize("device", ["near", "far"])
def test_gradients_that_are_not_cleared_are_found(tmp_path, request, device):
    if device == "far":
        request.getfixturevalue("far")
    with recording(tmp_path / "ill") as ill:
        fit(loose(3), clears=False)
    assert fires("TC201", ill.events).variables == ("opt0[0].0",)
    with recording(tmp_path / "well") as well:
        fit(loose(3))
    assert quiet("TC201", well.events) is Verdict.HELD


def test_gradients_that_are_not_cleared_are_found_in_single_steps(tmp_path):
    with recording(tmp_path / "ill", every=3) as ill:
        fit(loose(3), clears=False, steps=12)
    assert fires("TC201", ill.events).variables == ("opt0[0].0",)
    with recording(tmp_path / "well", every=3) as well:
        fit(loose(3), steps=12)
    assert quiet("TC201", well.events) is Verdict.NOT_TRIGGERED


def temperature(*, updates):
    """As that of SAC, beside a network that is trained."""
    net, alpha = nn.Linear(4, 1), torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.Adam(net.parameters())
    other = torch.optim.Adam([alpha])
    for _ in range(40):
        out = net(torch.randn(8, 4))
        optimizer.zero_grad()
        out.pow(2).mean().backward()
        optimizer.step()
        other.zero_grad()
        (alpha.exp() * (out.detach().mean() + 1)).mean().backward()
        if updates:
            other.step()


def test_an_update_that_is_missing_beside_others_is_found(tmp_path):
    with recording(tmp_path / "ill") as ill:
        temperature(updates=False)
    assert fires("TC202", ill.events).variables == ("opt1[0].0",)
    with recording(tmp_path / "well") as well:
        temperature(updates=True)
    assert quiet("TC202", well.events) is Verdict.HELD


def test_what_the_program_puts_in_its_place_is_followed_and_nothing_kept(tmp_path):
    """As where points are added to a scene, or pruned."""
    with recording(tmp_path) as run:
        optimizer = fit(loose(8))
        gone = weakref.ref(optimizer.param_groups[0]["params"][0])
        optimizer.state.clear()
        optimizer.param_groups[0]["params"] = loose(5)
        gc.collect()
        assert gone() is None
        fit(optimizer.param_groups[0]["params"], optimizer)
    changes = [e.change for e in run.of("state") if e.role == "parameter"]
    assert changes == ["new", *4 * ["content"], "replaced", *4 * ["content"]]
    assert report_of(run.events).findings == []


def test_an_optimizer_that_is_made_anew_takes_its_tensors_over(tmp_path):
    with recording(tmp_path) as run:
        held = loose(3)
        for _ in range(3):
            fit(held)
            gc.collect()
    changed = [e.name for e in run.of("state") if (e.role, e.change) == ("parameter", "content")]
    assert changed == [f"opt{number}[0].0" for number in range(3) for _ in range(4)]
    gone = [e.name for e in run.of("state") if e.change == "gone"]
    assert gone == ["opt0[0].0", "opt1[0].0"]
    assert report_of(run.events).findings == []


def test_two_optimizers_of_one_tensor_do_not_take_its_name_from_each_other(tmp_path):
    with recording(tmp_path) as run:
        held = loose(3)
        first, second = torch.optim.SGD(held, lr=0.1), torch.optim.SGD(held, lr=0.1)
        for _ in range(3):
            fit(held, first, steps=1)
            fit(held, second, steps=1)
    assert [list(e.groups[0].params) for e in run.of("optimizer")] == 2 * [["opt0[0].0"]]


def test_a_tensor_that_a_module_gets_later_has_its_name(tmp_path):
    with recording(tmp_path) as run:
        own = nn.Parameter(torch.zeros(3))
        optimizer = fit([own])
        net = nn.Module()
        net.own = own
        net.forward = lambda: net.own.mul(torch.randn(3)).sum()
        for _ in range(3):
            optimizer.zero_grad()
            net().backward()
            optimizer.step()
    changed = [e.name for e in run.of("state") if (e.role, e.change) == ("parameter", "content")]
    assert changed == [*4 * ["opt0[0].0"], *3 * ["Module.own"]]
    assert list(run.of("optimizer")[-1].groups[0].params) == ["Module.own"]
    assert report_of(run.events).findings == []


def test_images_that_are_optimized_with_closures(tmp_path):
    with recording(tmp_path) as run:
        image = torch.rand(1, 3, 8, 8, requires_grad=True)
        net = nn.Conv2d(3, 4, 3).requires_grad_(requires_grad=False)
        optimizer = torch.optim.LBFGS([image])

        def closure():
            with torch.no_grad():
                image.clamp_(0, 1)
            optimizer.zero_grad()
            loss = net(image).pow(2).mean()
            loss.backward()
            return loss

        for _ in range(4):
            optimizer.step(closure)
    assert report_of(run.events).findings == []


@pytest.mark.parametrize("renews", [True, False])
def test_an_optimizer_whose_tensors_are_replaced_behind_its_back(tmp_path, renews):
    """As where the points of a scene are pruned."""
    with recording(tmp_path) as run:
        points = torch.zeros(8, requires_grad=True)
        optimizer = torch.optim.SGD([points], lr=0.1)
        for step in range(60):
            optimizer.zero_grad()
            (points * torch.randn(points.shape)).sum().backward()
            optimizer.step()
            if step == 4:
                points = points.detach()[:5].clone().requires_grad_()
                if renews:
                    optimizer.param_groups[0]["params"] = [points]
    if renews:
        assert quiet("TC203", run.events) is Verdict.HELD
    else:
        finding = fires("TC203", run.events)
        assert finding.first_step == 5
        assert "still holds the old ones" in finding.likely_cause
        assert "param_groups" in finding.fix
