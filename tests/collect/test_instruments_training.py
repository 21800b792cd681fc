"""Optimizers, autograd, amp, schedulers and clipping as they are recorded."""

from __future__ import annotations

import copy
import functools
import io
import pickle
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.checkpoint import checkpoint

from benchmarks import harness
from tests.collect.recording import read_folder, recording
from traincheck.schema.claims import Needs
from traincheck.schema.torch_api import Families

OPTIMIZERS = sorted(
    name
    for name, cls in vars(torch.optim).items()
    if isinstance(cls, type)
    and issubclass(cls, torch.optim.Optimizer)
    and cls is not torch.optim.Optimizer
)
NEEDS_RATE = {"SGD", "LBFGS"}


def make(name, parameters):
    cls = getattr(torch.optim, name)
    if name == "Muon":
        return cls([p for p in parameters if p.dim() == 2])
    return cls(parameters, lr=0.1) if name in NEEDS_RATE else cls(parameters)


def one_step(model, optimizer):
    def closure():
        optimizer.zero_grad()
        out = (
            model(torch.ones(2, 3))
            if not isinstance(model, nn.Embedding)
            else model.forward(torch.tensor([0, 1]))
        )
        loss = out.pow(2).sum()
        loss.backward()
        return loss

    if isinstance(optimizer, torch.optim.LBFGS):
        return optimizer.step(closure)
    closure()
    return optimizer.step()


# -- optimizers


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_of_torch(tmp_path, name):
    with recording(tmp_path) as run:
        model = nn.Embedding(4, 3, sparse=True) if name == "SparseAdam" else nn.Linear(3, 3)
        optimizer = make(name, list(model.parameters()))
        for _ in range(2):
            one_step(model, optimizer)
    cls = type(optimizer)
    steps = run.calls(Families.OPTIMIZER_STEP)
    assert [e.api for e in steps] == [f"{cls.__module__}.{name}.step"] * 2
    assert [(e.owner, e.step) for e in steps] == [("opt0", 0), ("opt0", 1)]
    assert all(e.where.startswith(__file__) for e in steps)
    (created,) = run.of("optimizer")
    assert created.cls == f"{cls.__module__}.{name}"
    assert created.where.startswith(__file__)
    assert set(created.groups[0].hyper) == set(optimizer.defaults)
    changed = {n for n, change in run.changes("parameter") if change == "content"}
    assert changed
    zeroed = run.calls(Families.ZERO_GRAD)
    assert {e.owner for e in zeroed} == {"opt0"}
    assert {e.args["set_to_none"] for e in zeroed} == {True}


def test_the_list_of_optimizers_is_not_empty():
    assert {"SGD", "Adam", "AdamW", "LBFGS", "SparseAdam"} <= set(OPTIMIZERS)


class Own(torch.optim.Optimizer):
    """Third-party optimizers define all themselves."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad, alpha=group["lr"])


def test_a_subclass_that_calls_its_parents_step_is_one_step(tmp_path):
    class Careful(torch.optim.Adam):
        def step(self, closure=None):
            return super().step(closure)

    with recording(tmp_path) as run:
        for cls in (Careful, Own):
            model = nn.Linear(3, 3)
            one_step(model, cls(model.parameters()))
    steps = [".".join(e.api.split(".")[-2:]) for e in run.calls(Families.OPTIMIZER_STEP)]
    assert steps == ["Careful.step", "Own.step"]


def test_a_closure_is_inside_the_step(tmp_path):
    with recording(tmp_path) as run:
        model = nn.Linear(3, 3)
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
        for _ in range(2):
            one_step(model, optimizer)
    steps = run.calls(Families.OPTIMIZER_STEP)
    assert len(steps) == 2
    assert steps[0].args["closure"]["name"].endswith("closure")
    spans = {e.span for e in steps}
    inner = [*run.calls(Families.BACKWARD), *run.calls(Families.ZERO_GRAD)]
    assert len(inner) > 4
    assert all(e.parent in spans for e in inner)
    assert [e.step for e in run.of("step")] == [0, 1]


def test_a_step_that_raises(tmp_path):
    with recording(tmp_path) as run:
        optimizer = torch.optim.LBFGS(nn.Linear(3, 3).parameters())
        with pytest.raises(ZeroDivisionError):
            optimizer.step(lambda: 1 / 0)
    (step,) = run.calls(Families.OPTIMIZER_STEP)
    assert step.exception == "ZeroDivisionError"


def test_groups_and_their_changes(tmp_path):
    with recording(tmp_path) as run:
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        optimizer = torch.optim.SGD([{"params": model[0].parameters(), "lr": 0.5}], lr=0.1)
        optimizer.add_param_group({"params": list(model[1].parameters()), "momentum": 0.9})
        one_step(model, optimizer)
        optimizer.param_groups[0]["lr"] = 0.3  # a schedule is no change of groups
        one_step(model, optimizer)
        optimizer.param_groups[0]["nesterov"] = True
        optimizer.param_groups[0]["momentum"] = 0.9
        one_step(model, optimizer)
    created, joined, changed = run.of("optimizer")
    assert (created.change, joined.change, changed.change) == ("created", "groups", "groups")
    assert [list(g.params) for g in created.groups] == [
        ["Sequential.0.weight", "Sequential.0.bias"]
    ]
    assert [g.hyper["lr"] for g in joined.groups] == [0.5, 0.1]
    assert list(joined.groups[1].params) == ["Sequential.1.weight", "Sequential.1.bias"]
    assert changed.groups[0].hyper["nesterov"] is True
    # Rates are those that were used: what a schedule sets after the update is for the next step.
    assert [list(e.lr["opt0"]) for e in run.of("step")] == [[0.5, 0.1], [0.3, 0.1], [0.3, 0.1]]


def test_weight_decay_is_a_change_of_groups(tmp_path):
    with recording(tmp_path) as run:
        model = nn.Linear(3, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        one_step(model, optimizer)
        optimizer.param_groups[0]["weight_decay"] = 0.5
        one_step(model, optimizer)
    assert [e.change for e in run.of("optimizer")] == ["created", "groups"]
    assert run.of("optimizer")[1].groups[0].hyper["weight_decay"] == 0.5


def test_zeroing_through_the_model(tmp_path):
    with recording(tmp_path) as run:
        model = nn.Linear(3, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.zero_grad()
        optimizer.zero_grad(set_to_none=False)
    found = [(e.api, e.owner, e.module, e.args) for e in run.calls(Families.ZERO_GRAD)]
    assert found == [
        ("torch.nn.Module.zero_grad", None, "Linear", {"set_to_none": True}),
        ("torch.optim.sgd.SGD.zero_grad", "opt0", None, {"set_to_none": False}),
    ]


def test_an_optimizer_can_be_copied_and_pickled(tmp_path):
    with recording(tmp_path) as run:
        model = nn.Linear(3, 3)
        optimizer = torch.optim.Adam(model.parameters())
        one_step(model, optimizer)
        same_model, twin = copy.deepcopy((model, optimizer))
        one_step(same_model, twin)
        text = pickle.dumps(optimizer)
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
    loaded = pickle.loads(text)
    assert type(loaded) is torch.optim.Adam
    assert b"traincheck" not in text
    assert not any("traincheck" in key for key in vars(optimizer))
    assert torch.equal(loaded.param_groups[0]["params"][1], model.bias)
    assert run.events


@pytest.mark.parametrize("name", ["SGD", "Adam", "Rprop"])
def test_hooks_of_the_user_run_before_during_and_after(tmp_path, name):
    """Torch runs step hooks in its wrapper, which must outlive that of traincheck."""

    def count(calls):
        model = nn.Linear(3, 3)
        optimizer = make(name, model.parameters())
        optimizer.register_step_pre_hook(lambda *_: calls.append("pre"))
        optimizer.register_step_post_hook(lambda *_: calls.append("post"))
        one_step(model, optimizer)
        return lambda: one_step(model, optimizer)

    calls = []
    with recording(tmp_path):
        again = count(calls)
        assert calls == ["pre", "post"]
    again()
    assert calls == ["pre", "post"] * 2
    count(calls)
    assert calls == ["pre", "post"] * 3


def test_hooks_outlive_ours_on_a_class_first_used_while_recording(tmp_path):
    class Fresh(Own):
        step = torch.no_grad()(Own.__dict__["step"].__wrapped__)

    calls = []
    with recording(tmp_path):
        model = nn.Linear(3, 3)
        optimizer = Fresh(model.parameters())
        optimizer.register_step_post_hook(lambda *_: calls.append("post"))
        one_step(model, optimizer)
    one_step(model, optimizer)
    assert calls == ["post", "post"]


def test_two_optimizers_have_ids_in_order_of_creation(tmp_path):
    with recording(tmp_path) as run:
        one, other = nn.Linear(3, 3), nn.Linear(3, 3)
        first = torch.optim.SGD(one.parameters(), lr=0.1)
        second = torch.optim.Adam(other.parameters())
        one_step(other, second)
        one_step(one, first)
    assert [e.id for e in run.of("optimizer")] == ["opt0", "opt1"]
    assert [e.owner for e in run.calls(Families.OPTIMIZER_STEP)] == ["opt1", "opt0"]


@pytest.mark.parametrize("exact", [True, False])
def test_why_an_update_has_no_effect_is_told_with_it(tmp_path, exact):
    """Gradients that are taken away by hand, and zeros of either sign; not what is lost later."""
    states = None if exact else frozenset({"parameter@step", "gradient@backward"})
    needs = None if states is None else Needs(states=states, kinds=frozenset({"step"}))
    with recording(tmp_path, needs=needs) as run:
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in range(4):
            optimizer.zero_grad()
            scale = torch.tensor([-0.0, 0.0]) if number == 2 else torch.ones(2)
            hook = model.bias.register_hook(lambda gradient, scale=scale: gradient * scale)
            model(torch.ones(2, 2)).sum().backward()
            hook.remove()
            if number == 1:
                model.bias.grad = None
            if number == 3:
                model.bias.grad.zero_()
            optimizer.step()
    steps = [call.span for call in run.calls("torch.optim.sgd.SGD.step")]
    told = [e for e in run.of("state") if e.role == "gradient" and e.after in steps]
    assert [(e.name, e.change, steps.index(e.after)) for e in told] == [
        ("Linear.bias", "cleared", 1),
        ("Linear.bias", "content", 2),
    ]
    assert told[1].summary.zero


# -- autograd


class Marked(torch.Tensor):
    """Torch has what is called with one of it called once more."""


@pytest.mark.parametrize("form", [lambda loss: loss, lambda loss: [loss], lambda loss: (loss,)])
def test_a_backward_pass_under_a_mode_is_one_call(tmp_path, form):
    with recording(tmp_path) as run:
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for mode in (torch.device("cpu"), nullcontext()):
            with mode:
                torch.autograd.backward(form(model(torch.ones(1, 2)).sum()))
                optimizer.step()
        torch.autograd.backward(tensors=model(torch.ones(1, 2)).sum().as_subclass(Marked))
        optimizer.step()
    assert len(run.calls("torch.autograd.backward")) == 3
    assert [step.counters["backward"] for step in run.of("step")] == [1, 1, 1]


def test_a_backward_pass_within_another_is_a_call_of_its_own(tmp_path):
    """As a checkpoint that computes again makes it."""
    with recording(tmp_path) as run:
        loss = checkpoint(nn.Linear(2, 2), torch.ones(1, 2, requires_grad=True), use_reentrant=True)
        torch.autograd.backward(loss.sum())
    inner, outer = run.calls("torch.autograd.backward")
    assert inner.parent == outer.span


def test_a_backward_is_recorded_however_it_is_called(tmp_path):
    with recording(tmp_path) as run:
        x = torch.ones(3, requires_grad=True)
        loss = (x * x).sum()
        loss.backward(retain_graph=True)
        torch.autograd.backward([loss], retain_graph=True)
        torch.autograd.grad(loss, x)
    calls = run.calls(Families.BACKWARD)
    assert len(calls) == 2
    assert [e.args["retain_graph"] for e in calls] == [True, True]
    assert all(e.where.startswith(__file__) for e in calls)
    assert [e.api for e in run.calls("torch.autograd.grad")] == ["torch.autograd.grad"]


def test_a_backward_that_raises(tmp_path):
    with recording(tmp_path) as run:
        with pytest.raises(RuntimeError):
            torch.ones(3).sum().backward()
        torch.ones(3, requires_grad=True).sum().backward()
    assert [e.exception for e in run.calls(Families.BACKWARD)] == ["RuntimeError", None]


# -- amp


def test_a_scaler_that_steps_and_one_that_skips(tmp_path):
    with recording(tmp_path) as run:
        model = nn.Linear(3, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for factor in (1.0, float("inf"), 1.0):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(2, 3)).sum() * factor).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
    assert [e.step for e in run.calls(Families.SCALER_STEP)] == [0, 1, 2]
    assert [e.step for e in run.calls(Families.OPTIMIZER_STEP)] == [0, 2]
    assert {e.owner for e in run.calls(Families.SCALER_STEP)} == {"opt0"}
    assert {e.owner for e in run.calls(Families.UNSCALE)} == {"opt0"}
    inside = {e.span for e in run.calls(Families.SCALER_STEP)}
    assert all(e.parent in inside for e in run.calls(Families.OPTIMIZER_STEP))
    counters = [
        (e.counters.get("optimizer_step", 0), e.counters["scaler_step"]) for e in run.of("step")
    ]
    assert counters == [(1, 1), (0, 1), (1, 1)]
    assert len(run.calls(Families.SCALER_UPDATE)) == 3
    assert len(run.calls("torch.amp.GradScaler.scale")) == 3


# -- schedulers

SCHEDULERS = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda s: 0.9**s),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 5),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=10),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)], milestones=[2]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_each_step_of_the_users_is_one_step(tmp_path, name):
    def rates():
        model = nn.Linear(3, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scheduler = SCHEDULERS[name](optimizer)
        found = []
        for _ in range(4):
            one_step(model, optimizer)
            scheduler.step()
            found.append(optimizer.param_groups[0]["lr"])
        return found

    plain = rates()
    with recording(tmp_path) as run:
        assert rates() == plain
    calls = run.calls(Families.SCHEDULER_STEP)
    assert [e.api for e in calls] == [f"torch.optim.lr_scheduler.{name}.step"] * 4
    assert [e.step for e in calls] == [0, 1, 2, 3]
    assert {e.owner for e in calls} == {"opt0"}
    assert len(set(plain)) > 1


def test_a_scheduler_that_waits_for_a_metric(tmp_path):
    with recording(tmp_path) as run:
        optimizer = torch.optim.SGD(nn.Linear(3, 3).parameters(), lr=0.1)
        lr_scheduler.ReduceLROnPlateau(optimizer).step(0.5)
        lr_scheduler.ReduceLROnPlateau(optimizer).step(metrics=0.25)
    assert [list(e.args.values()) for e in run.calls(Families.SCHEDULER_STEP)] == [[0.5], [0.25]]


def test_a_scheduler_in_a_scheduler_hook_of_another_thread_is_not_lost(tmp_path):
    """Two schedulers of one optimizer, one after the other: two steps."""
    with recording(tmp_path) as run:
        optimizer = torch.optim.SGD(nn.Linear(3, 3).parameters(), lr=0.1)
        schedulers = [lr_scheduler.ExponentialLR(optimizer, 0.9) for _ in range(2)]
        optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
    assert len(run.calls(Families.SCHEDULER_STEP)) == 2


class Made(lr_scheduler.LRScheduler):
    """Gives the names that are read other values, and computes one."""

    def __init__(self, optimizer):
        self.T_max, self.total_iters, self.milestones = True, torch.tensor(3), [1, 2]
        self.lr_lambdas = [None, lambda step: 1.0]
        super().__init__(optimizer)

    def get_lr(self):
        return list(self.base_lrs)

    @property
    def total_steps(self):
        raise RuntimeError


def ramp(step, *, num_training_steps):
    return 1 - step / num_training_steps


@pytest.mark.parametrize(
    ("make", "length"),
    [
        (lambda o: lr_scheduler.OneCycleLR(o, 0.1, epochs=3, steps_per_epoch=4), ["total_steps"]),
        (lambda o: lr_scheduler.CosineAnnealingLR(o, 12, last_epoch=-1), ["T_max"]),
        (lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 12), ["T_0"]),
        (lambda o: lr_scheduler.LinearLR(o, total_iters=12), ["total_iters"]),
        (lambda o: lr_scheduler.MultiStepLR(o, [12, 5]), ["last_milestone"]),
        (
            lambda o: lr_scheduler.LambdaLR(o, functools.partial(ramp, num_training_steps=12)),
            ["num_training_steps"],
        ),
        (lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.5), []),
        (lambda o: lr_scheduler.MultiStepLR(o, []), []),
        (Made, []),
    ],
)
def test_how_long_a_schedule_is_made_for(tmp_path, make, length):
    with recording(tmp_path) as run:
        make(torch.optim.SGD(nn.Linear(3, 3).parameters(), lr=0.1))
    (made,) = run.calls(Families.SCHEDULER_CREATED)
    assert made.args == {"last_epoch": -1, **dict.fromkeys(length, 12)}


# -- clipping


def test_clipping_says_what_it_found(tmp_path):
    with recording(tmp_path) as run:
        model = nn.Linear(3, 3)
        model(torch.ones(2, 3)).sum().backward()
        total = nn.utils.clip_grad_norm_(list(model.parameters()), 0.5)
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.25)
        nn.utils.clip_grad_value_(model.weight, 0.1)
    one, two = run.calls(Families.CLIP_NORM)
    assert one.args == {"max_norm": 0.5, "parameters": 2}
    assert one.result["value"] == pytest.approx(float(total))
    assert two.args == {"max_norm": 0.25}
    assert run.calls(Families.CLIP_VALUE)[0].args == {"clip_value": 0.1, "parameters": 1}
    assert float(total) > 0.5


CLIPS_SHARDED = """
import sys

import torch
import torch.distributed as dist

assert "torch.distributed.fsdp" not in sys.modules  # nothing of ours imports it

from torch.distributed.fsdp import FullyShardedDataParallel

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = FullyShardedDataParallel(torch.nn.Linear(3, 3), device_id=torch.device("cpu"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    optimizer.zero_grad()
    model(torch.ones(2, 3)).sum().backward()
    print(model.clip_grad_norm_(0.5).item())
    optimizer.step()
print(sys.modules[model.__module__].__loader__, sys.modules[model.__module__].__spec__.loader)
"""


@pytest.mark.real_process
def test_clipping_of_a_sharded_model_is_clipping(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(CLIPS_SHARDED)
    command = [harness.command("traincheck-collect"), "-p", script, "-o", tmp_path / "run"]
    done = harness.run(command)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("SourceFileLoader object") == 2  # the module is what it is without us
    events = [e for e in read_folder(tmp_path / "run") if e.kind == "call"]
    clips = [event for event in events if event.api == Families.FSDP_CLIP]
    assert [clip.family for clip in clips] == [Families.CLIP_NORM] * 2
    assert clips[0].args == {"max_norm": 0.5}
    assert str(clips[0].result["value"]) in done.stdout.split()


def test_a_generator_of_parameters_reaches_the_clipping(tmp_path):
    def clip():
        torch.manual_seed(0)
        model = nn.Linear(3, 3)
        model(torch.ones(2, 3)).sum().backward()
        nn.utils.clip_grad_norm_((p for p in model.parameters()), 0.1)
        return torch.cat([p.grad.flatten() for p in model.parameters()])

    plain = clip()
    with recording(tmp_path):
        assert torch.equal(clip(), plain)
    assert plain.norm() < 0.11


def test_names_bound_before_the_start_still_work(tmp_path):
    from torch.nn.utils import clip_grad_norm_

    with recording(tmp_path) as run:
        model = nn.Linear(3, 3)
        model(torch.ones(2, 3)).sum().backward()
        clip_grad_norm_(model.parameters(), 0.1)
    assert run.calls(Families.CLIP_NORM) == []  # seen only when imported after torch, as scripts do
    assert model.weight.grad.norm() < 0.11


def test_a_scheduler_is_recorded_when_it_is_made(tmp_path):
    with recording(tmp_path) as run:
        optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), 0.1)
        lr_scheduler.StepLR(optimizer, 2)
    (made,) = run.calls(Families.SCHEDULER_CREATED)
    assert (made.api, made.owner) == ("torch.optim.lr_scheduler.StepLR.__init__", "opt0")
    assert "test_instruments_training.py" in made.where
    assert not run.calls(Families.SCHEDULER_STEP)


@pytest.mark.parametrize("enabled", [True, False])
def test_a_scaler_tells_whether_it_is_enabled(tmp_path, enabled):
    with recording(tmp_path) as run:
        torch.amp.GradScaler("cpu", enabled=enabled).scale(torch.ones(()))
    (call,) = run.calls(Families.SCALE)
    assert call.args == {"enabled": enabled}


def test_an_object_around_an_optimizer_clears_what_it_clears(tmp_path):
    """A wrapper like that of Lightning, which is not itself an optimizer."""
    with recording(tmp_path) as run:
        inner = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1)
        outer = object.__new__(torch.optim.SGD)
        outer.__dict__.update(inner.__dict__)
        outer.zero_grad()
        stranger = object.__new__(torch.optim.SGD)
        stranger.__dict__.update(inner.__dict__, param_groups=[])
        stranger.zero_grad()
    assert [event.owner for event in run.calls(Families.ZERO_GRAD)] == ["opt0", None]
