"""Variables as a recorded loop shows them: which there are, what changed, and nothing else."""

from __future__ import annotations

import copy
import gc
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.collect.recording import recording
from traincheck.collect.tensors.fingerprint import holds_zeros
from traincheck.collect.tracking import naming
from traincheck.schema.claims import Needs

PARAMETERS = ("parameter", "gradient", "buffer", "optimizer_state")
CHANGED = Needs(states=frozenset(f"{role}@*" for role in PARAMETERS), kinds=frozenset({"step"}))


class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.body = nn.Linear(4, width)
        self.norm = nn.BatchNorm1d(4)  # before the body: a bias before it has no gradient
        self.head = nn.Linear(width, 2)

    def forward(self, x):
        return self.head(F.relu(self.body(self.norm(x))))


NAMES = [f"Net.{part}.{key}" for part in ("body", "norm", "head") for key in ("weight", "bias")]


def train(model, optimizer, steps=3, *, last=False, set_to_none=True):
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        if not last:
            optimizer.zero_grad(set_to_none=set_to_none)
        x = torch.randn(6, 4, generator=generator)
        model(x).pow(2).sum().backward()
        optimizer.step()
        if last:
            optimizer.zero_grad(set_to_none=set_to_none)


def per_step(run, role, change):
    """Names with this change, for each step in which there are any."""
    found = {}
    for event in run.of("state"):
        if (event.role, event.change) == (role, change):
            found.setdefault(event.step, []).append(event.name)
    return found


# -- which variables there are


def test_a_model_is_walked_once_when_an_optimizer_is_made(tmp_path, monkeypatch):
    walked, walk = [], naming.walk
    monkeypatch.setattr(naming, "walk", lambda *args: walked.append(1) or walk(*args))
    with recording(tmp_path):
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        assert len(walked) == 1
        train(model, optimizer)
        assert len(walked) == 1
        model.head = nn.Linear(8, 2)
        train(model, optimizer)
    assert len(walked) > 1


@pytest.mark.parametrize("called_first", [False, True], ids=["optimizer first", "model first"])
def test_every_variable_is_named_once(tmp_path, called_first):
    with recording(tmp_path) as run:
        model = Net()
        if called_first:
            with torch.no_grad():
                model(torch.zeros(2, 4))
            model(torch.zeros(2, 4))
        optimizer = torch.optim.Adam(model.parameters())
        train(model, optimizer)
    new = [e for e in run.of("state") if e.change == "new"]
    assert [e.name for e in new if e.role == "parameter"] == NAMES
    buffers = ["Net.norm.running_mean", "Net.norm.running_var", "Net.norm.num_batches_tracked"]
    assert [e.name for e in new if e.role == "buffer"] == buffers
    state = [f"{name}/{key}" for name in NAMES for key in ("step", "exp_avg", "exp_avg_sq")]
    assert [e.name for e in new if e.role == "optimizer_state"] == state
    assert {e.owner for e in new if e.role == "optimizer_state"} == {"opt0"}
    assert {e.module_class for e in new if e.name.startswith("Net.body")} == {
        "torch.nn.modules.linear.Linear"
    }
    assert not [e for e in new if e.role == "gradient"]
    (created,) = run.of("optimizer")
    parameters = {e.name: e.identity for e in new if e.role == "parameter"}
    assert list(created.groups[0].params) == NAMES
    assert list(created.groups[0].ids) == [parameters[name] for name in NAMES]


def test_parameters_of_no_module_are_named_by_their_optimizer(tmp_path):
    with recording(tmp_path) as run:
        loose = [nn.Parameter(torch.ones(3)) for _ in range(2)]
        optimizer = torch.optim.SGD([{"params": loose[:1]}, {"params": loose[1:]}], lr=0.1)
        optimizer.zero_grad()
        sum(p.sum() for p in loose).backward()
        optimizer.step()
    (created,) = run.of("optimizer")
    assert [list(group.params) for group in created.groups] == [["opt0[0].0"], ["opt0[1].0"]]


def test_tied_weights_are_one_object_under_two_names(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(4, 4, bias=False)
            self.last = nn.Linear(4, 4, bias=False)
            self.last.weight = self.first.weight
            self.apart = nn.Linear(4, 4, bias=False)

        def forward(self, x):
            return self.apart(self.last(self.first(x)))

    with recording(tmp_path) as run:
        model = Tied()
        train(model, torch.optim.SGD(model.parameters(), lr=0.01), steps=1)
    new = {e.name: (e.identity, e.storage) for e in run.of("state") if e.change == "new"}
    assert set(new) == {"Tied.first.weight", "Tied.last.weight", "Tied.apart.weight"}
    assert new["Tied.first.weight"] == new["Tied.last.weight"]
    assert len(set(new.values())) == 2
    assert len({storage for _, storage in new.values()}) == 2


def test_a_replaced_head(tmp_path):
    """The bug of the forums: the optimizer holds the parameters of a head that is gone."""
    with recording(tmp_path) as run:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.head = nn.Linear(8, 2)
        train(model, optimizer, steps=2)
    replaced = per_step(run, "parameter", "replaced")
    assert replaced == {0: ["Net.head.weight", "Net.head.bias"]}
    (created,) = run.of("optimizer")
    now = {e.name: e.identity for e in run.of("state") if e.role == "parameter"}
    held = set(created.groups[0].ids)
    assert {name for name, identity in now.items() if identity not in held} == set(replaced[0])
    changed = per_step(run, "parameter", "content")
    assert changed == {0: NAMES[:4], 1: NAMES[:4]}


def test_weights_that_stand_in_for_the_parameters_of_a_call(tmp_path):
    """Meta-learning: the loss of adapted weights has gradients of those that were adapted."""
    with recording(tmp_path) as run:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            fast = dict(model.named_parameters())
            x = torch.randn(6, 4)
            for _ in range(2):
                loss = torch.func.functional_call(model, fast, x).pow(2).mean()
                grads = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
                fast = {name: p - 0.1 * g for (name, p), g in zip(fast.items(), grads)}
            torch.func.functional_call(model, fast, x).pow(2).mean().backward()
            optimizer.step()
    assert {change for _, change in run.changes("parameter")} == {"new", "content"}
    assert sorted(per_step(run, "gradient", "set")[0]) == sorted(NAMES)
    assert list(per_step(run, "parameter", "content")) == [0, 1, 2]


def test_a_module_that_others_always_lend_their_parameters(tmp_path):
    """An ensemble: one skeleton computes for all of them at once, under vmap."""
    with recording(tmp_path) as run:
        models = [Net().eval() for _ in range(2)]
        parameters, buffers = torch.func.stack_module_state(models)
        skeleton = copy.deepcopy(models[0]).to("meta")
        optimizer = torch.optim.SGD(parameters.values(), lr=0.1)

        def member(weights, statistics, x):
            return torch.func.functional_call(skeleton, (weights, statistics), (x,))

        for _ in range(2):
            optimizer.zero_grad()
            x = torch.randn(6, 4)
            torch.func.vmap(member, (0, 0, None))(parameters, buffers, x).sum().backward()
            optimizer.step()
    assert {name.partition("/")[0][:8] for name in (e.name for e in run.of("state"))} == {
        "opt0[0]."
    }
    assert len(run.calls("torch.nn.modules.linear.Linear.forward")) == 4


def test_gradients_of_single_samples_are_assigned_by_hand(tmp_path):
    with recording(tmp_path) as run:
        model = Net().eval()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def loss(weights, x):
            return torch.func.functional_call(model, weights, x[None]).pow(2).sum()

        for _ in range(3):
            weights = {name: p.detach() for name, p in model.named_parameters()}
            gradient = torch.func.grad(loss)
            each = torch.func.vmap(gradient, (None, 0))(weights, torch.randn(6, 4))
            for name, parameter in model.named_parameters():
                parameter.grad = each[name].mean(0)
            optimizer.step()
    assert {change for _, change in run.changes("parameter")} == {"new", "content"}
    assert sorted(per_step(run, "parameter", "content")[1]) == sorted(NAMES)


def test_a_part_that_leaves_and_one_that_joins(tmp_path):
    with recording(tmp_path) as run:
        model = Net()
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=1)
        del model.norm.bias
        model.norm.register_parameter("bias", None)
        model.head.register_parameter("scale", nn.Parameter(torch.ones(1)))
        model(torch.zeros(2, 4))
    found = [(e.name, e.change) for e in run.of("state") if e.role == "parameter" and e.step]
    assert ("Net.norm.bias", "gone") in found
    assert ("Net.head.scale", "new") in found
    assert len(found) == 2


def test_a_root_made_anew_replaces_its_predecessor(tmp_path):
    with recording(tmp_path) as run:
        for _ in range(2):
            model = Net()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            train(model, optimizer, steps=1)
            del model, optimizer
            gc.collect()
    changes = [(e.name, e.change) for e in run.of("state") if e.role == "parameter"]
    assert {name for name, _ in changes} == set(NAMES)
    assert [name for name, change in changes if change == "replaced"] == NAMES
    assert [name for name, change in changes if change == "new"] == NAMES


def test_a_copy_has_a_name_of_its_own(tmp_path):
    with recording(tmp_path) as run:
        model = Net()
        average = copy.deepcopy(model)
        average.requires_grad_(False)
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=1)
        average(torch.zeros(2, 4))
    roots = {e.name.partition(".")[0] for e in run.of("state") if e.role == "parameter"}
    assert roots == {"Net", "Net#2"}
    changed = {name for name, change in run.changes("parameter") if change == "content"}
    assert changed == set(NAMES)


@pytest.mark.parametrize("forgotten", [False, True])
def test_of_two_models_of_a_class_the_one_made_first_is_the_first(tmp_path, forgotten):
    """An encoder that the optimizer does not hold keeps its name, and so does the rest."""
    with recording(tmp_path) as run:
        encoder, head = Net(width=16), Net(width=2)
        held = [*head.parameters()] if forgotten else [*head.parameters(), *encoder.parameters()]
        torch.optim.SGD(held, lr=0.1)
        encoder(torch.zeros(2, 4))
    (created,) = run.of("optimizer")
    assert created.groups[0].params[0] == "Net#2.body.weight"
    shapes = {e.name: e.summary.shape for e in run.of("state") if e.change == "new"}
    assert (shapes["Net.body.weight"], shapes["Net#2.body.weight"]) == ((16, 4), (2, 4))


@pytest.mark.parametrize("way", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_parameters_of_a_copy_are_named_when_the_optimizer_is_made(tmp_path, way):
    """Copying calls no constructor: the module is found by how its state is set."""
    with recording(tmp_path) as run:
        model = way(Net())
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=2)
    (created,) = run.of("optimizer")
    assert list(created.groups[0].params) == NAMES
    assert per_step(run, "parameter", "content") == {0: NAMES, 1: NAMES}


def test_parameters_of_no_module_are_named_by_their_place(tmp_path):
    """The twin: nobody owns them."""
    with recording(tmp_path) as run:
        torch.optim.SGD([torch.ones(2, requires_grad=True)], lr=0.1)
    (created,) = run.of("optimizer")
    assert list(created.groups[0].params) == ["opt0[0].0"]


# -- what changes


@pytest.mark.parametrize("last", [False, True], ids=["zero_grad first", "zero_grad last"])
@pytest.mark.parametrize("needs", [None, CHANGED], ids=["all", "selective"])
def test_a_healthy_loop(tmp_path, last, needs):
    with recording(tmp_path, needs=needs) as run:
        model = Net()
        train(model, torch.optim.Adam(model.parameters()), steps=3, last=last)
    everywhere = {0: NAMES, 1: NAMES, 2: NAMES}
    assert per_step(run, "parameter", "content") == everywhere
    assert per_step(run, "gradient", "set") == everywhere
    cleared = everywhere if last else {1: NAMES, 2: NAMES}
    assert per_step(run, "gradient", "cleared") == cleared
    assert per_step(run, "gradient", "content") == {}
    buffers = per_step(run, "buffer", "content")
    assert all(len(names) == 3 for names in buffers.values())
    assert set(buffers) == {0, 1, 2}
    moments = per_step(run, "optimizer_state", "content")
    assert {step: len([n for n in names if "exp_avg" in n]) for step, names in moments.items()} == {
        1: 12,
        2: 12,
    }


@pytest.mark.parametrize("needs", [None, CHANGED], ids=["all", "selective"])
def test_records_of_one_look_are_numbered_in_the_order_in_which_they_are_written(tmp_path, needs):
    """Among usual ones is one frozen and thawed, one replaced and one that is not contiguous."""
    with recording(tmp_path, needs=needs) as run:
        model = Net()
        optimizer = torch.optim.Adam(model.parameters())
        train(model, optimizer, steps=2)
        model.norm.bias.requires_grad_(False)
        model.body.weight.data = model.body.weight.data.t().contiguous().t()
        train(model, optimizer, steps=2)
        model.norm.bias.requires_grad_(True)
        train(model, optimizer, steps=2)
    assert [e.seq for e in run.events] == list(range(len(run.events)))
    times = [e.time_ns for e in run.events]
    assert times == sorted(times)
    flags = [(e.step, e.name) for e in run.of("state") if e.change == "flags"]
    assert [name for _, name in flags] == ["Net.norm.bias"] * 2
    updated = per_step(run, "parameter", "content")
    frozen = sorted(set(NAMES) - {"Net.norm.bias"})
    found = [sorted(names) for names in updated.values()]
    assert found == [sorted(NAMES)] * 2 + [frozen] * 2 + [sorted(NAMES)] * 2


def test_looks_name_the_call_they_follow(tmp_path):
    with recording(tmp_path) as run:
        model = Net()
        train(model, torch.optim.Adam(model.parameters()), steps=2)
    spans = {e.span: e.family or e.api for e in run.of("call")}
    after = {(e.role, e.change): spans[e.after] for e in run.of("state") if e.after is not None}
    assert after == {
        ("parameter", "content"): "torch.optim.Optimizer.step",
        ("optimizer_state", "new"): "torch.optim.Optimizer.step",
        ("optimizer_state", "content"): "torch.optim.Optimizer.step",
        ("gradient", "set"): "torch.autograd.backward",
        ("gradient", "cleared"): "torch.optim.Optimizer.zero_grad",
        ("buffer", "content"): "torch.nn.Module.forward",
    }


def test_gradients_that_accumulate_change(tmp_path):
    """zero_grad is missing: the gradient is never cleared, and its content differs."""
    with recording(tmp_path) as run:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.ones(4, 4) * torch.arange(4.0)[:, None]).sum().backward()
            optimizer.step()
    assert set(per_step(run, "gradient", "set")) == {0}
    assert per_step(run, "gradient", "cleared") == {}
    assert set(per_step(run, "gradient", "content")) == {1}


@pytest.mark.parametrize("needs", [None, CHANGED], ids=["all", "selective"])
def test_gradients_filled_with_zero_are_told(tmp_path, needs):
    with recording(tmp_path, needs=needs) as run:
        model = nn.Sequential(nn.Linear(4, 300))
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=2, set_to_none=False)
    found = [(e.step, e.change, e.summary.zero) for e in run.of("state") if e.role == "gradient"]
    assert found == [
        (0, "set", False),
        (0, "set", False),
        (1, "content", True),
        (1, "content", True),
        (1, "content", False),
        (1, "content", False),
    ]
    assert per_step(run, "gradient", "cleared") == {}


def test_a_gradient_of_zeros_from_backward_is_told(tmp_path):
    with recording(tmp_path) as run:
        model = nn.Linear(4, 3)
        (model(torch.ones(2, 4)) * 0).sum().backward()
    assert [e.summary.zero for e in run.of("state") if e.role == "gradient"] == [True, True]


def test_frozen_parameters_do_not_change(tmp_path):
    with recording(tmp_path) as run:
        model = Net()
        model.body.requires_grad_(False)
        train(model, torch.optim.Adam(model.parameters(), weight_decay=0.1), steps=2)
    assert per_step(run, "parameter", "content") == {0: NAMES[2:], 1: NAMES[2:]}
    assert per_step(run, "gradient", "set") == {0: NAMES[2:], 1: NAMES[2:]}
    flags = {e.name: e.requires_grad for e in run.of("state") if e.change == "new"}
    assert [flags[name] for name in NAMES] == [False, False, True, True, True, True]


def test_unfreezing_is_a_change_of_flags(tmp_path):
    with recording(tmp_path) as run:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.body.requires_grad_(False)
        train(model, optimizer, steps=1)
        model.body.requires_grad_(True)
        train(model, optimizer, steps=1)
    found = [(e.name, e.requires_grad) for e in run.of("state") if e.change == "flags"]
    assert found[-2:] == [(NAMES[0], True), (NAMES[1], True)]
    assert per_step(run, "parameter", "content")[1] == NAMES


def test_writes_past_the_version_counter_are_seen(tmp_path):
    with recording(tmp_path) as run:
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        for step in range(3):
            optimizer.zero_grad()
            model(torch.ones(1, 4)).sum().backward()
            if step == 1:
                version = model.weight._version
                model.weight.data.numpy()[0, 0] += 1
                assert model.weight._version == version
            optimizer.step()
    assert per_step(run, "parameter", "content") == {1: ["Linear.weight"]}


@pytest.mark.parametrize("needs", [None, CHANGED], ids=["all", "selective"])
def test_a_learning_rate_of_zero_changes_nothing(tmp_path, needs):
    with recording(tmp_path, needs=needs) as run:
        model = Net(width=64)
        train(model, torch.optim.SGD(model.parameters(), lr=0.0), steps=4)
    assert per_step(run, "parameter", "content") == {}
    assert per_step(run, "parameter", "unknown") == {}


# -- optimizers that compute the same in different ways


def sequence(run):
    return [
        (e.step, e.role, e.name, e.change, e.summary.zero if e.summary else None)
        for e in run.of("state")
    ]


@pytest.mark.parametrize("needs", [None, CHANGED], ids=["all", "selective"])
@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD"])
def test_implementations_of_an_optimizer_give_the_same_changes(tmp_path, name, needs):
    found = {}
    for how in ({"foreach": False}, {"foreach": True}, {"fused": True}):
        more = {"momentum": 0.9} if name == "SGD" else {}
        torch.manual_seed(0)
        with recording(tmp_path / str(how), needs=needs) as run:
            model = Net()
            optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.01, **how, **more)
            train(model, optimizer, steps=3)
        found[str(how)] = sequence(run)
        assert len(per_step(run, "parameter", "content")) == 3
    first, *others = found.values()
    assert all(other == first for other in others)


def test_sparse_gradients(tmp_path):
    with recording(tmp_path) as run:
        table = nn.Embedding(50, 4, sparse=True)
        optimizer = torch.optim.SparseAdam(table.parameters(), lr=0.01)
        for step in range(3):
            optimizer.zero_grad()
            table(torch.tensor([step, step + 1])).sum().backward()
            optimizer.step()
    name = ["Embedding.weight"]
    assert per_step(run, "gradient", "set") == {0: name, 1: name, 2: name}
    assert per_step(run, "gradient", "cleared") == {1: name, 2: name}
    assert per_step(run, "parameter", "content") == {0: name, 1: name, 2: name}
    assert {e.summary.zero for e in run.of("state") if e.change == "set"} == {False}


# -- selective: "did it change" only


def test_an_embedding_row_far_from_the_probed_slices_is_found(tmp_path):
    """A probe reads head, middle and tail: where it finds nothing the whole is read."""
    rows = [0, 300, 300, 700, 300, 999, 700, 300]
    with recording(tmp_path, needs=CHANGED) as run:
        table = nn.Embedding(1000, 16)
        optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
        for row in rows:
            optimizer.zero_grad()
            table(torch.tensor([row])).sum().backward()
            optimizer.step()
    name = ["Embedding.weight"]
    changed, unknown = (per_step(run, "parameter", kind) for kind in ("content", "unknown"))
    seen = set(changed) | set(unknown)
    assert seen == set(range(len(rows)))
    assert all(names == name for names in changed.values())
    assert len(unknown) <= 1
    assert set(range(3, len(rows))) <= set(changed)


def test_unknown_is_not_said_of_what_did_not_change(tmp_path):
    """Half of a model learns; the other half must neither change nor be called unknown."""
    with recording(tmp_path, needs=CHANGED) as run:
        moving, still = nn.Linear(64, 64), nn.Linear(64, 64)
        model = nn.Sequential(moving, still)
        optimizer = torch.optim.SGD(moving.parameters(), lr=0.1)
        train_wide(model, optimizer, 5)
    names = {name for names in per_step(run, "parameter", "content").values() for name in names}
    assert names == {"Sequential.0.weight", "Sequential.0.bias"}
    assert per_step(run, "parameter", "unknown") == {}


def train_wide(model, optimizer, steps):
    for step in range(steps):
        optimizer.zero_grad()
        (model(torch.ones(2, 64) + step)).pow(2).mean().backward()
        optimizer.step()


def test_a_parameter_that_stops_is_told_apart_from_one_that_goes_on(tmp_path):
    """After changes of which only a probe is known, the first standstill cannot be told."""
    with recording(tmp_path, needs=CHANGED) as run:
        model = nn.Linear(64, 64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
        train_wide(model, optimizer, 3)
        optimizer.param_groups[0]["lr"] = 0.0
        train_wide(model, optimizer, 3)
    changed, unknown = (per_step(run, "parameter", kind) for kind in ("content", "unknown"))
    assert set(changed) == {0, 1, 2}
    assert set(unknown) <= {3}


# -- a part of the steps


@pytest.mark.parametrize("needs", [None, CHANGED], ids=["all", "selective"])
def test_of_skipped_steps_only_the_number_is_recorded(tmp_path, needs):
    with recording(tmp_path, every=3, needs=needs) as run:
        model = Net()
        train(model, torch.optim.Adam(model.parameters()), steps=8)
    steps = {e.step: e.recorded for e in run.of("step")}
    assert steps == {step: step % 3 == 0 for step in range(8)}
    assert {e.step for e in run.events if e.kind not in ("step", "stage")} <= {0, 3, 6, None}
    everywhere = {0: NAMES, 3: NAMES, 6: NAMES}
    assert per_step(run, "parameter", "content") == everywhere
    assert per_step(run, "gradient", "set") == everywhere
    assert per_step(run, "optimizer_state", "unknown") == {}


@pytest.mark.parametrize("needs", [None, CHANGED], ids=["all", "selective"])
def test_after_a_gap_what_changed_meanwhile_is_no_change(tmp_path, needs):
    with recording(tmp_path, every=3, needs=needs) as run:
        model = Net(width=64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
        for step in range(7):
            optimizer.param_groups[0]["lr"] = 0.001 if step % 3 else 0.0
            train(model, optimizer, steps=1)
    assert {e.step for e in run.of("step") if e.recorded} == {0, 3, 6}
    assert per_step(run, "parameter", "content") == {}
    assert per_step(run, "parameter", "unknown") == {}


def test_warm_up_is_recorded_in_full(tmp_path):
    with recording(tmp_path, every=100, warmup=2) as run:
        model = Net()
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=5)
    assert {e.step: e.recorded for e in run.of("step")} == {
        0: True, 1: True, 2: False, 3: False, 4: False,
    }  # fmt: skip
    assert per_step(run, "parameter", "content") == {0: NAMES, 1: NAMES}


@pytest.mark.parametrize("every", [1, 3])
def test_training_is_what_it_was(tmp_path, every):
    def weights():
        torch.manual_seed(0)
        model = Net()
        train(model, torch.optim.Adam(model.parameters()), steps=5)
        return torch.cat([p.detach().flatten() for p in model.parameters()]), torch.rand(3)

    plain = weights()
    with recording(tmp_path, every=every):
        recorded = weights()
    assert all(torch.equal(one, other) for one, other in zip(plain, recorded))


@pytest.mark.parametrize("looked_at_before_training", [False, True])
def test_a_head_replaced_between_trainings(tmp_path, looked_at_before_training):
    """An evaluation in between must not make the tracker believe that it knows the new head."""
    with recording(tmp_path) as run:
        model = Net()
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=2)
        model.head = nn.Linear(8, 2)
        if looked_at_before_training:
            with torch.no_grad():
                model(torch.zeros(2, 4))
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=2)
    replaced = [name for name, change in run.changes("parameter") if change == "replaced"]
    assert replaced == ["Net.head.weight", "Net.head.bias"]
    changed = per_step(run, "parameter", "content")
    assert changed == dict.fromkeys(range(4), NAMES)


def test_layers_made_in_the_first_forward_are_tracked(tmp_path):
    class Lazy(nn.Module):
        def forward(self, x):
            if not hasattr(self, "layer"):
                self.layer = nn.Linear(4, 2)
            return self.layer(x)

    with recording(tmp_path) as run:
        model = Lazy()
        model(torch.zeros(2, 4))
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=2)
        materialised = nn.LazyLinear(2)
        materialised(torch.zeros(2, 4))
        train(materialised, torch.optim.SGD(materialised.parameters(), lr=0.1), steps=1)
    new = [e.name for e in run.of("state") if e.change == "new" and e.role == "parameter"]
    assert new[:2] == ["Lazy.layer.weight", "Lazy.layer.bias"]
    changed = {name for names in per_step(run, "parameter", "content").values() for name in names}
    assert {"Lazy.layer.weight", "Lazy.layer.bias"} <= changed
    assert len(changed) == 4


def by_none(parameter):
    parameter.grad = None


def in_place(parameter):
    parameter.grad.zero_()


def kept(parameter):
    """Clears nothing."""


@pytest.mark.parametrize(("clear", "is_seen"), [(by_none, True), (in_place, True), (kept, False)])
def test_gradients_cleared_by_hand_are_seen_before_the_next_backward(tmp_path, clear, is_seen):
    with recording(tmp_path) as run:
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(torch.randn(3, 4)).pow(2).sum().backward()
            optimizer.step()
            for parameter in model.parameters():
                clear(parameter)
    looks = [e for e in run.of("state") if e.role == "gradient" and e.name == "Linear.weight"]
    cleared = [e for e in looks if e.change == "cleared" or (e.summary and e.summary.zero)]
    assert len(cleared) == (2 if is_seen else 0)


def test_a_gradient_without_memory_of_its_own_is_read_by_its_parts(tmp_path):
    from torch.testing._internal.two_tensor import TwoTensor

    with recording(tmp_path) as run:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            loss = model(torch.ones(6, 4)).pow(2).sum()
            weight = model.head.weight

            def wrapped(parameter):
                # as a shard of a distributed tensor: a wrapper says where it lies and has no bytes
                parameter.grad = TwoTensor(parameter.grad, parameter.grad.clone())

            handle = weight.register_post_accumulate_grad_hook(wrapped) if step else None
            loss.backward()
            assert step == 0 or not weight.grad.data_ptr()
            if handle:
                handle.remove()
                weight.grad = None
            optimizer.step()
    assert "Net.head.weight" in per_step(run, "gradient", "set")[1]


class Sharded:
    """A distributed tensor of a torch that cannot count over its shards."""

    __module__ = "torch.distributed.tensor"  # else its methods would be code of the program

    def __init__(self, local):
        self._local_tensor = local

    def detach(self):
        raise NotImplementedError


@pytest.mark.parametrize("made", [Sharded, torch.Tensor.to_sparse, torch.Tensor.clone])
def test_a_gradient_of_zeros_is_told_in_any_layout(made):
    assert holds_zeros(made(torch.zeros(2, 3)))
    assert not holds_zeros(made(torch.eye(3)))
