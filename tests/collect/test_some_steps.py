"""Calls within models, and looks, in some training steps, where all who ask are content."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from tests.collect.recording import recording
from traincheck.schema.claims import BATCH_CONTENT, SAMPLED_STEPS, Needs, sampled, within_modules
from traincheck.schema.torch_api import Families

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
        train_in_steps(15, evaluate_at=9)
    assert steps_of(run, LINEAR) == [*range(8), 9, 14]
    # The one before the model, and the one in it; in evaluation only the latter
    assert Counter(steps_of(run, RELU)) == {**dict.fromkeys((*range(8), 14), 2), 9: 1}
    assert steps_of(run, CROSS_ENTROPY) == sorted([*range(15), 9])
    assert [e.step for e in run.calls(Families.MODULE) if e.root] == sorted([*range(15), 9])
    told = run.marks("process")[0].data
    assert f"{LINEAR}@some" in told["recorded"]["calls"]
    assert CROSS_ENTROPY in told["recorded"]["calls"]
    assert told["some"] == [SAMPLED_STEPS.first, SAMPLED_STEPS.every]


@pytest.mark.parametrize("more", [Needs(calls=frozenset({LINEAR})), None])
def test_calls_within_models_are_all_recorded_when_anyone_wants_them(tmp_path, more):
    needs = Needs(calls=within_modules(LINEAR, RELU), kinds=frozenset({"step"}))
    with recording(tmp_path / "run", needs=more and needs | more) as run:
        train_in_steps(15, evaluate_at=9)
    assert steps_of(run, LINEAR) == sorted([*range(15), 9])
    assert Counter(steps_of(run, RELU)) == {**dict.fromkeys(range(15), 2), 9: 3}


@pytest.mark.parametrize(
    "needs",
    [
        pytest.param(Needs(calls=frozenset({"torch.relu"})), id="hidden"),
        pytest.param(Needs(calls=within_modules(RELU) | {"torch.relu"}), id="in some steps"),
    ],
)
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_torchscript_finds_the_originals_of_what_hides_its_calls(tmp_path, needs):
    with recording(tmp_path / "run", needs=needs):
        assert torch.jit.script(F.relu)(torch.tensor([-1.0])).item() == 0
        layer = torch.jit.script(nn.TransformerEncoderLayer(4, 2, batch_first=True).eval())
        assert layer(torch.ones(1, 2, 4)).shape == (1, 2, 4)


@pytest.mark.parametrize(
    "needs",
    [
        pytest.param(Needs(calls=within_modules(RELU) | {"torch.relu"}), id="in some steps"),
        pytest.param(Needs(calls=frozenset({"torch.relu"})), id="not at all"),
        pytest.param(Needs(calls=frozenset({RELU, "torch.relu"})), id="always"),
        pytest.param(None, id="everything"),
    ],
)
def test_what_functionals_call_is_left_out_however_often_they_are_recorded(tmp_path, needs):
    before = F.relu
    with recording(tmp_path / "run", needs=needs) as run:
        model = Inner()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(15):
            optimizer.zero_grad()
            model(torch.relu(torch.randn(8, 4)), torch.zeros(8).long()).backward()
            optimizer.step()
        assert nn.TransformerEncoderLayer(4, 2).activation is F.relu
        F.relu(torch.ones(2))
    assert F.relu is before
    assert steps_of(run, "torch.relu") == list(range(15))


def test_steps_that_are_sampled_are_whole(tmp_path):
    needs = Needs(calls=within_modules(LINEAR), kinds=frozenset({"step"}))
    with recording(tmp_path / "run", needs=needs, every=7) as run:
        train_in_steps(16, evaluate_at=20)
    assert steps_of(run, LINEAR) == [0, 7, 14]
    assert run.marks("process")[0].data["recorded"]["calls"] == [LINEAR]


@pytest.mark.parametrize("is_wanted_in_all", [False, True])
def test_batches_have_fingerprints_in_some_steps(tmp_path, is_wanted_in_all):
    always = frozenset({BATCH_CONTENT}) if is_wanted_in_all else frozenset()
    states = sampled(BATCH_CONTENT) | always
    needs = Needs(states=states, kinds=frozenset({"step", "batch"}))
    data = torch.utils.data.TensorDataset(torch.randn(64, 4))
    with recording(tmp_path / "run", needs=needs) as run:
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for (x,) in torch.utils.data.DataLoader(data, 4, shuffle=True):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
    batches = run.of("batch")
    assert [len(batch.indices) for batch in batches] == [4] * 16
    told = [b.step for b in batches if "fingerprint" in b.leaves["batch[0]"]]
    assert told == (list(range(16)) if is_wanted_in_all else [*range(8), 14])


def test_batches_without_indices_have_fingerprints_in_all_steps(tmp_path):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(torch.randn(40, 4))

    needs = Needs(states=sampled(BATCH_CONTENT), kinds=frozenset({"step", "batch"}))
    with recording(tmp_path / "run", needs=needs) as run:
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x in torch.utils.data.DataLoader(Stream(), 4):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
    assert ["fingerprint" in b.leaves["batch"] for b in run.of("batch")] == [True] * 10


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)
        self.bn = nn.BatchNorm1d(2)

    def forward(self, x):
        return self.bn(self.fc(x))


LOOKS = Needs(
    states=sampled(
        "parameter@step",
        "gradient@backward",
        "gradient@zero_grad",
        "buffer@forward",
        "optimizer_state@step",
    ),
    kinds=frozenset({"step", "optimizer"}),
)
TAKEN = [*range(8), 14, 21]


def train(model, steps, begin=None, update=None, optimizer=torch.optim.SGD):
    """begin, update: called with the step and the optimizer, at its start and before its update."""
    optimizer = optimizer(model.parameters(), lr=0.1)
    for step in range(steps):
        if begin is not None:
            begin(step, optimizer)
        optimizer.zero_grad()
        # To a target: squares behind a norm have a mean of 1, their gradients are rounding errors
        (model(torch.randn(8, 4)) - torch.randn(8, 2)).square().mean().backward()
        if update is not None:
            update(step, optimizer)
        optimizer.step()


def steps_that(run, role, name, *changes):
    found = [e for e in run.of("state") if (e.role, e.name) == (role, name)]
    return [e.step for e in found if e.change in changes]


def test_variables_are_looked_at_in_some_steps_when_that_is_enough(tmp_path):
    with recording(tmp_path / "run", needs=LOOKS) as run:
        train(Norm(), 23, optimizer=torch.optim.Adam)
    assert steps_that(run, "parameter", "Norm.fc.weight", "content") == TAKEN
    assert steps_that(run, "gradient", "Norm.fc.weight", "set") == TAKEN
    # The first step finds nothing to clear
    assert steps_that(run, "gradient", "Norm.fc.weight", "cleared") == TAKEN[1:]
    assert steps_that(run, "buffer", "Norm.bn.running_mean", "content") == TAKEN
    state = steps_that(run, "optimizer_state", "Norm.fc.weight/exp_avg", "new", "content")
    assert state == TAKEN
    assert [e.step for e in run.of("step")] == list(range(23))
    assert all(e.recorded for e in run.of("step"))
    assert run.marks("process")[0].data["some"] == [SAMPLED_STEPS.first, SAMPLED_STEPS.every]


def test_what_changed_in_steps_without_looks_is_not_said_of_the_next_with_looks(tmp_path):
    model = Norm()

    def leave_out(step, optimizer):
        model.fc.weight.grad = model.fc.weight.grad if step < 12 else None

    with recording(tmp_path / "run", needs=LOOKS) as run:
        train(model, 15, update=leave_out)
    assert steps_that(run, "parameter", "Norm.fc.weight", "content") == list(range(8))
    assert steps_that(run, "parameter", "Norm.bn.bias", "content") == [*range(8), 14]


def test_a_parameter_frozen_between_looks_is_told_in_its_step(tmp_path):
    """Else a model that is frozen and put into evaluation mode seems to be trained in it."""
    model = Norm()
    with recording(tmp_path / "run", needs=LOOKS) as run:
        train(model, 15, begin=lambda step, _: model.fc.bias.requires_grad_(step < 10))
    told = [e for e in run.of("state") if e.name == "Norm.fc.bias" and e.change == "flags"]
    assert [(e.step, e.requires_grad) for e in told] == [(10, False)]


@pytest.mark.parametrize(
    "more",
    [
        {"needs": LOOKS | Needs(states=frozenset({"buffer@forward"}))},
        {"needs": LOOKS, "whole": True},
        {"needs": None},
    ],
)
def test_variables_are_looked_at_in_all_steps_when_anyone_wants_that(tmp_path, more):
    with recording(tmp_path / "run", **more) as run:
        train(Norm(), 11)
    assert steps_that(run, "parameter", "Norm.fc.weight", "content") == list(range(11))
    assert steps_that(run, "buffer", "Norm.bn.running_mean", "content") == list(range(11))


def test_a_layer_that_is_added_between_looks_is_told_with_its_optimizer(tmp_path):
    def grow(step, optimizer):
        if step == 10:
            model.append(nn.Linear(2, 2))
            optimizer.add_param_group({"params": model[1].parameters()})

    with recording(tmp_path / "run", needs=LOOKS) as run:
        model = nn.Sequential(nn.Linear(4, 2))
        train(model, 15, begin=grow)
    found = [e.step for e in run.of("state") if (e.name, e.change) == ("Sequential.1.bias", "new")]
    joined = [e for e in run.of("optimizer") if e.change == "groups"]
    # Between two steps: the batch or zero_grad that begins the next is yet to come
    assert found == [e.step for e in joined] == [9]
    assert list(joined[0].groups[1].params) == ["Sequential.1.weight", "Sequential.1.bias"]


def test_a_parameter_that_is_replaced_between_looks_is_told_at_the_next(tmp_path):
    def replace(step, optimizer):
        if step == 10:
            model[0].weight = nn.Parameter(model[0].weight.detach().clone())

    with recording(tmp_path / "run", needs=LOOKS) as run:
        model = nn.Sequential(nn.Linear(4, 2))
        train(model, 15, begin=replace)
    assert steps_that(run, "parameter", "Sequential.0.weight", "replaced") == [14]
    assert steps_that(run, "parameter", "Sequential.0.weight", "content") == list(range(8))
    assert steps_that(run, "parameter", "Sequential.0.bias", "content") == [*range(8), 14]


def test_a_step_with_looks_may_begin_inside_torch_func(tmp_path):
    """There other tensors, without memory, stand in the place of the parameters."""
    with recording(tmp_path / "run", needs=LOOKS) as run:
        model = nn.Sequential(nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def loss(parameters, x):
            return torch.func.functional_call(model, parameters, (x[None],)).square().mean()

        for _ in range(16):
            held = {name: p.detach() for name, p in model.named_parameters()}
            each = torch.func.vmap(torch.func.grad(loss), (None, 0))(held, torch.randn(8, 4))
            for name, parameter in model.named_parameters():
                parameter.grad = each[name].mean(0)
            optimizer.step()
    assert not run.marks("fault")
    assert 14 in steps_that(run, "parameter", "Sequential.0.weight", "content")


def test_what_torch_func_lends_is_not_taken_for_the_parameter(tmp_path, recwarn):
    with recording(tmp_path / "run", needs=LOOKS) as run:
        model = nn.Sequential(nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(15):
            noisy = {n: p * 1.5 for n, p in model.named_parameters()}
            out = torch.func.functional_call(model, noisy, (torch.randn(8, 4),))
            out.square().mean().backward()
            if step >= 8:
                model[0].weight.grad = None
            optimizer.step()
            optimizer.zero_grad()
    assert not recwarn.list
    assert 14 not in steps_that(run, "parameter", "Sequential.0.weight", "content")
    assert 14 in steps_that(run, "parameter", "Sequential.0.bias", "content")


@pytest.mark.parametrize("replaces", [False, True])
def test_gradients_of_steps_that_were_not_looked_at_were_not_replaced(tmp_path, replaces):
    """A recorded step begins with an update: of the gradients that are there nothing was seen."""
    model = nn.Linear(3, 2)
    kept = []  # so that no gradient lies where another one did

    def closure():
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        return loss

    with recording(tmp_path, every=3) as run:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step, x in enumerate(DataLoader(torch.ones(12, 3))):  # noqa: B007  # closure's
            if step == 6:
                optimizer.step(closure)
            else:
                closure()
                if replaces and step == 3:
                    model.weight.grad = model.weight.grad.clone()
                optimizer.step()
            kept.append(model.weight.grad)
    assert [mark.step for mark in run.marks("gradients replaced")] == ([3] if replaces else [])
