"""`traincheck.Monitor`: what programs of torch-module-monitor do, and what failed there."""

from __future__ import annotations

import copy
import logging
import math
import pickle
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import traincheck
from tests.metrics.networks import NETWORKS, batches, loss_of, made
from traincheck import (
    Monitor,
    MonitorMixin,
    RefinedCoordinateCheck,
    monitor_scaled_dot_product_attention,
)
from traincheck.errors import UsageError

QUICK_START = """
from traincheck import Monitor as ModuleMonitor

# Initialize and add metrics
monitor = ModuleMonitor(monitor_step_fn=lambda step: step % 10 == 0)
monitor.set_module(model)

monitor.add_activation_metric("mean", lambda x: x.mean())
monitor.add_parameter_metric("norm", lambda x: x.norm())
monitor.add_gradient_metric("norm", lambda x: x.norm())

# Training loop
for step, (inputs, targets) in enumerate(dataloader):
    monitor.begin_step(step)

    outputs = model(inputs)  # Activations captured via hooks
    loss = criterion(outputs, targets)
    loss.backward()

    monitor.monitor_parameters()
    monitor.monitor_gradients()

    optimizer.step()
    optimizer.zero_grad()
    monitor.end_step()

    # Log metrics
    if monitor.is_step_monitored(step):
        wandb.log(monitor.get_step_metrics())
"""


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def one_step(monitor: Monitor, model: nn.Module, *inputs: torch.Tensor, step: int = 0) -> dict:
    monitor.begin_step(step)
    for batch in inputs:
        loss_of(model(batch)).backward()
    monitor.monitor_parameters()
    monitor.monitor_gradients()
    monitor.end_step()
    return monitor.get_step_metrics()


class Log:
    def __init__(self) -> None:
        self.lines: list[dict] = []

    def log(self, numbers, step=None):
        self.lines.append(dict(numbers))


def test_quick_start_of_the_readme() -> None:
    model, wandb = net(), Log()
    names = {
        "model": model,
        "wandb": wandb,
        "optimizer": torch.optim.SGD(model.parameters(), 0.1),
        "criterion": nn.MSELoss(),
        "dataloader": [(torch.ones(2, 3), torch.zeros(2, 2))] * 21,
    }
    exec(QUICK_START, names)
    assert len(wandb.lines) == 3
    assert set(wandb.lines[0]) == {
        *(f"activation/{name}/mean" for name in ("0", "1", "2", "[root module]")),
        *(f"{kind}/{n}.{p}/norm" for kind in ("parameter", "gradient") for n in "02"
          for p in ("weight", "bias")),
    }  # fmt: skip
    assert names["monitor"].get_all_metrics()[20] == wandb.lines[2]


def test_other_snippets_of_the_readme() -> None:
    model = nn.Sequential()
    model.mlp = net()
    monitor = Monitor(lambda step: True)
    monitor.set_module(model)
    reference_model = copy.deepcopy(model)
    monitor.add_activation_metric("my_metric", lambda x: x.std(), metric_regex=r".*mlp.*")
    monitor.set_reference_module(reference_model)
    monitor.add_parameter_difference_metric("l2_distance", lambda p, p_ref: (p - p_ref).norm())
    with torch.no_grad():
        model.mlp[0].bias += 1
    found = one_step(monitor, model, torch.ones(2, 3))
    assert "activation/mlp.0/my_metric" in found
    assert "activation/[root module]/my_metric" not in found
    assert found["parameter_difference/mlp.0.bias/l2_distance"] == pytest.approx(2.0)
    assert found["parameter_difference/mlp.2.bias/l2_distance"] == 0.0


class MultiHeadAttention(nn.Module, MonitorMixin):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.output_projection = nn.Linear(8, 24), nn.Linear(8, 8)

    def compute_qkv(self, x):
        return self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)

    def forward(self, x):
        q, k, v = self.compute_qkv(x)
        attn_output = F.scaled_dot_product_attention(q, k, v)

        if self.is_monitoring:
            monitor_scaled_dot_product_attention(
                self.get_module_monitor(),
                module=self,
                query=q,
                key=k,
                value=v,
                activation=attn_output,
            )
            self.get_module_monitor().log_tensor("custom_stat", attn_output.norm(dim=-1))
        return self.output_projection(attn_output.transpose(1, 2).flatten(2))


def test_a_module_that_reports_its_attention() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(MultiHeadAttention())
    model(torch.randn(2, 5, 8))  # no monitor yet
    monitor = Monitor(lambda step: True)
    monitor.set_module(model)
    monitor.add_activation_metric("norm", lambda x: x.norm())
    monitor.set_reference_module("init")
    monitor.add_activation_difference_metric("l2", lambda a, b: (a - b).norm())
    x = torch.randn(2, 5, 8)
    found = one_step(monitor, model, x)
    q, k, _ = model[0].compute_qkv(x).detach().double()
    p = (q @ k.transpose(-1, -2) / 2).softmax(-1)
    expected = -(p * p.log()).sum(-1).mean((0, 2))
    for head in range(2):
        assert found[f"attention_entropy/0.head_{head}"] == pytest.approx(
            expected[head].item(), abs=1e-4
        )
        for part in ("query", "key", "value", "activation"):
            assert found[f"activation/0.head_{head}.{part}/norm"] > 0
            assert found[f"activation_difference/0.head_{head}.{part}/l2"] == 0.0
    assert found["custom_stat"] > 0
    assert not monitor.failed
    copy.deepcopy(model)
    pickle.loads(pickle.dumps(model))


def test_micro_batches_of_unequal_size_give_the_exact_mean() -> None:
    model = net()
    monitor = Monitor(lambda step: True, metrics=["act:mean,std,max,kurtosis"])
    monitor.set_module(model)
    monitor.add_activation_metric("scalar", lambda x: x.mean())
    monitor.add_activation_metric("rows", lambda x: x.norm(dim=-1))
    x = torch.randn(16, 3)
    found = one_step(monitor, model, x[:4], x[4:])
    out = model(x).detach().double()
    assert found["activation/2/scalar"] == pytest.approx(out.mean().item(), abs=1e-6)
    assert found["activation/2/rows"] == pytest.approx(out.norm(dim=-1).mean().item(), abs=1e-6)
    assert found["activation/2/mean"] == pytest.approx(out.mean().item(), abs=1e-6)
    assert found["activation/2/std"] == pytest.approx(out.std(unbiased=False).item(), abs=1e-6)
    assert found["activation/2/max"] == out.max().item()


def test_a_validation_within_the_step_is_apart() -> None:
    model, x = net(), torch.randn(4, 3)
    monitor = Monitor(lambda step: True)
    monitor.set_module(model)
    monitor.add_activation_metric("mean", lambda x: x.mean())
    monitor.begin_step(0)
    expected = model(x).mean().item()
    with torch.no_grad():
        model(x + 100)
    with monitor.no_monitor():
        model(x - 100)
    monitor.end_step()
    found = monitor.get_step_metrics()
    assert found["activation/2/mean"] == pytest.approx(expected)
    assert found["eval/activation/2/mean"] != pytest.approx(expected)


def test_twenty_failing_metrics_stop_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Strange(dict):
        def items(self):
            raise KeyError("strange")

    def raises(error):
        def metric(*_):
            raise error

        return metric

    bad = [
        raises(RuntimeError("a")), raises(KeyError("b")), raises(MemoryError()),
        raises(RecursionError()), raises(StopIteration()), raises(ValueError()),
        raises(AssertionError()), raises(ZeroDivisionError()), raises(OSError(5, "io")),
        raises(UnicodeError()), lambda x: "text", lambda x: None, lambda x: [1, 2],
        lambda x: object(), lambda x: Strange(a=1), lambda x: {"a": "b"}, lambda x, y, z: x,
        lambda x: x.nothing, lambda x: x @ x.new_ones(99), lambda x: x.view(-1)[10**6],
    ]  # fmt: skip
    model, twin = net(), net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    monitor = Monitor(lambda step: True)
    monitor.set_module(model)
    for index, function in enumerate(bad):
        monitor.add_activation_metric(f"a{index}", function)
        monitor.add_parameter_metric(f"p{index}", function)
        monitor.add_gradient_metric(f"g{index}", function)
    monitor.add_activation_metric("good", lambda x: 1)
    for step in range(3):
        optimizer.zero_grad()
        found = one_step(monitor, model, torch.ones(2, 3), step=step)
        optimizer.step()
    assert found == {f"activation/{n}/good": 1.0 for n in ("0", "1", "2", "[root module]")}
    assert len(monitor.failed) == 3 * len(bad)
    assert len(caplog.records) == 3 * len(bad)
    other = torch.optim.SGD(twin.parameters(), 0.1)
    for _ in range(3):
        other.zero_grad()
        loss_of(twin(torch.ones(2, 3))).backward()
        other.step()
    for one, same in zip(model.parameters(), twin.parameters()):
        assert torch.equal(one, same)


@pytest.mark.parametrize("returned", [3, 0.5, True, torch.tensor(2), torch.ones(4).bool()])
def test_a_metric_may_return_any_number(returned) -> None:
    model = net()
    monitor = Monitor(lambda step: True)
    monitor.set_module(model)
    monitor.add_activation_metric("n", lambda x: returned)
    found = one_step(monitor, model, torch.ones(2, 3))
    assert found["activation/0/n"] == pytest.approx(
        float(torch.as_tensor(returned).double().mean())
    )


def test_aggregations() -> None:
    model = net()
    monitor = Monitor(lambda step: True)
    monitor.set_module(model)
    rows = {"sum": 8.0, "max": 3.0, "min": 1.0, "last": 3.0}
    for how in rows:
        monitor.add_activation_metric(how, lambda x: x.new_tensor(float(len(x))), "2", how)
    both = lambda v: {"[mean]": v.mean(), "[std]": v.std()}  # noqa: E731
    monitor.add_activation_metric("both", lambda x: x.norm(dim=-1), "2", both)
    monitor.add_activation_metric("parts", lambda x: {"a": x.sum() * 0, "b": 1}, "2")
    found = one_step(monitor, model, *(torch.ones(n, 3) for n in (1, 2, 2, 3)))
    assert {how: found[f"activation/2/{how}"] for how in rows} == rows
    assert {"activation/2/both[mean]", "activation/2/both[std]"} < set(found)
    assert (found["activation/2/parts/a"], found["activation/2/parts/b"]) == (0.0, 1.0)


def test_per_channel() -> None:
    model = nn.Conv2d(1, 3, 1)
    monitor = Monitor(lambda step: True, metrics=[])
    monitor.set_module(model)
    monitor.add_activation_metric("mean", lambda x: x.mean(), per="channel")
    x = torch.randn(2, 1, 4, 4)
    found = one_step(monitor, model, x)
    expected = model(x).mean((0, 2, 3))
    for index in range(3):
        key = f"activation/[root module].channel_{index}/mean"
        assert found[key] == pytest.approx(expected[index].item(), abs=1e-6)


def test_gradients_without_a_metric_or_without_any_match(caplog) -> None:
    model = net()
    model[0].requires_grad_(False)
    monitor = Monitor(lambda step: True)
    monitor.set_module(model)
    found = one_step(monitor, model, torch.ones(2, 3))
    assert found == {}
    monitor.add_gradient_metric("norm", lambda g: g.norm(), "2.bias")
    assert set(one_step(monitor, model, torch.ones(2, 3), step=1)) == {"gradient/2.bias/norm"}
    assert len(caplog.records) == 1
    assert "2 of 4 parameters have no gradient" in caplog.text


def test_logged_numbers() -> None:
    monitor = Monitor(lambda step: step == 1)
    monitor.set_module(net())
    for step in range(2):
        monitor.begin_step(step)
        monitor.log_scalars({"loss": torch.tensor(2.0), "lr": 0.1})
        monitor.log_scalar("loss", 4.0)
        monitor.log_scalar("always", step, force=True)
        monitor.end_step()
    assert monitor.get_all_metrics() == {
        0: {"always": 0.0},
        1: {"loss": 3.0, "lr": 0.1, "always": 1.0},
    }


def test_files_come_back_equal(tmp_path: Path) -> None:
    model = net()
    monitor = Monitor(lambda step: True)
    monitor.set_module(model)
    monitor.add_activation_metric("mean/of \u00e9", lambda x: x.mean() / 3)
    monitor.add_activation_metric("nan", lambda x: math.nan)
    monitor.add_activation_metric("inf", lambda x: -math.inf)
    for step in range(3):
        one_step(monitor, model, torch.randn(2, 3), step=step)
    for suffix in (".csv", ".json", ".parquet", ".h5"):
        if suffix == ".h5":
            pytest.importorskip("h5py")
        monitor.save(tmp_path / f"m{suffix}")
        assert traincheck.read_metrics(tmp_path / f"m{suffix}") == monitor.metrics
    monitor.save_hdf5(tmp_path / "any.name")
    back = Monitor.load_hdf5(tmp_path / "any.name")
    assert back.keys() == monitor.condensed_log_dict().keys()
    with pytest.raises(UsageError, match="no format is known"):
        monitor.save(tmp_path / "m.xyz")


def test_models_can_be_copied_and_pickled_in_a_step() -> None:
    model = net()
    monitor = Monitor(lambda step: True)
    monitor.set_module(model)
    monitor.add_activation_metric("mean", lambda x: x.mean())
    monitor.begin_step(0)
    x = torch.ones(2, 3)
    expected = model(x).mean().item()
    copy.deepcopy(model)(x * 50)
    pickle.loads(pickle.dumps(model))(x * 50)
    monitor.end_step()
    assert monitor.get_step_metrics()["activation/2/mean"] == pytest.approx(expected)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_compiled_without_a_break() -> None:
    model = net()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    monitor = Monitor(lambda step: True)
    monitor.set_module(compiled)
    monitor.add_activation_metric("mean", lambda x: x.mean())
    torch._dynamo.reset()
    for step in range(3):
        found = one_step(monitor, compiled, torch.ones(2, 3), step=step)
    assert "activation/[root module]/mean" in found
    assert not monitor.failed


@pytest.mark.parametrize("kind", NETWORKS)
def test_the_optimizer_ends_steps_and_training_is_bit_identical(kind: str) -> None:
    model, optimizer = made(kind)
    monitor = Monitor(
        model, optimizer, every=2, metrics=["act:rms", "update:ratio", "grad:norm", "act_grad:rms"]
    )
    monitor.add_activation_metric("noise", lambda x: torch.randn(()))
    monitor.set_reference("init")
    monitor.add_activation_difference_metric("l2", lambda a, b: (a - b).float().norm())
    RefinedCoordinateCheck(monitor)
    twin, other = made(kind)
    for own, its in ((model, optimizer), (twin, other)):
        torch.manual_seed(3)
        for batch in batches(kind, 5):
            its.zero_grad()
            loss_of(own(batch)).backward()
            its.step()
    monitor.close()
    assert not monitor.failed
    assert list(monitor.get_all_metrics()) == [0, 2, 4]
    assert any(key.startswith("update/") for key in monitor.get_all_metrics()[2])
    for (name, one), (_, same) in zip(model.state_dict().items(), twin.state_dict().items()):
        assert torch.equal(one, same), name


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("runs_itself", [True, False])
@pytest.mark.parametrize("kind", NETWORKS)
def test_coordinates_are_exactly_0_at_step_0(kind: str, runs_itself: bool) -> None:
    model, optimizer = made(kind)
    reference = copy.deepcopy(model)
    before = copy.deepcopy(reference.state_dict())
    monitor = Monitor(lambda step: True)
    monitor.set_module(model)
    monitor.set_reference_module(reference)
    monitor.add_activation_difference_metric("l2", lambda a, b: (a - b).float().norm())
    check = RefinedCoordinateCheck(monitor)
    for step, batch in enumerate(batches(kind, 2)):
        monitor.begin_step(step)
        if not runs_itself:
            with monitor.no_monitor(), torch.no_grad():
                reference(batch)
        loss_of(model(batch)).backward()
        check.refined_coordinate_check()
        optimizer.step()
        monitor.end_step()
        found = monitor.get_step_metrics()
        terms = {k: v for k, v in found.items() if "(W_t-W_0)x_t" in k and "/W_t x_t" not in k}
        moved = {k: v for k, v in found.items() if "x_t-x_0" in k and "/W_0 x_0" not in k}
        moved |= {k: v for k, v in found.items() if k.startswith("activation_difference/")}
        assert terms
        assert moved
        assert not monitor.failed
        if step == 0:
            assert set(terms.values()) | set(moved.values()) == {0.0}
        else:
            assert max(terms.values()) > 0
    for name, value in reference.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_a_reference_that_fails_leaves_the_training_as_it_is(caplog) -> None:
    class Broken(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model, self.drop = model, nn.Dropout(0.5)
            self.breaks = False

        def forward(self, x):
            x = self.drop(x)
            if self.breaks:
                raise RuntimeError("broken")
            return self.model(x)

    found = []
    for is_monitored in (False, True):
        model = Broken(net())
        if is_monitored:
            monitor = Monitor(lambda step: True)
            monitor.set_module(model)
            reference = copy.deepcopy(model)
            reference.breaks = True
            monitor.set_reference_module(reference)
            monitor.add_activation_difference_metric("l2", lambda a, b: (a - b).norm())
            monitor.begin_step(0)
        torch.manual_seed(5)
        found.append(model(torch.ones(4, 3)))
    assert torch.equal(*found)
    assert "broken" in caplog.text


def test_wrong_use() -> None:
    monitor = Monitor()
    with pytest.raises(ValueError, match="No module to monitor"):
        monitor.begin_step(0)
    with pytest.raises(ValueError, match="before setting the reference"):
        monitor.set_reference_module(net())
    monitor.set_module(net())
    with pytest.raises(ValueError, match="already been set"):
        monitor.set_module(net())
    monitor.add_activation_metric("a", abs)
    with pytest.raises(ValueError, match="there is a metric"):
        monitor.add_activation_metric("a", abs)
    with pytest.raises(ValueError, match="other names"):
        monitor.set_reference_module(nn.Sequential())
    monitor.begin_step(5)
    with pytest.raises(ValueError, match="cannot be smaller"):
        monitor.begin_step(4)
    with pytest.raises(UsageError):
        Monitor(every=0)


def test_a_receiver_that_fails_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def log(self, numbers, step):
            raise OSError("no network")

    receiver, model = Log(), net()
    monitor = Monitor(lambda step: True, to=[Broken(), receiver])
    monitor.set_module(model)
    monitor.add_parameter_metric("norm", lambda p: p.norm())
    with caplog.at_level(logging.WARNING):
        found = one_step(monitor, model, torch.ones(1, 3))
    assert receiver.lines == [found]
    assert "no network" in caplog.text


def test_differences_need_no_function() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    monitor = Monitor(model, optimizer, every=1, metrics=["diff:rms", "param_diff:norm"])
    monitor.set_reference("init")
    first = copy.deepcopy(model)
    x = torch.ones(2, 3)
    expected = []
    for _ in range(2):
        with torch.no_grad():
            moved = (model(x) - first(x)).square().mean().sqrt().item()
        expected.append((moved, (model[0].weight - first[0].weight).norm().item()))
        optimizer.zero_grad()
        loss_of(model(x)).backward()
        optimizer.step()
    monitor.close()
    for step, (moved, weight) in enumerate(expected):
        found = monitor.get_all_metrics()[step]
        assert found["activation_difference/[root module]/rms"] == pytest.approx(moved, rel=1e-5)
        assert found["parameter_difference/0.weight/norm"] == pytest.approx(weight, rel=1e-5)
    assert expected[0] == (0, 0)
    assert expected[1] > (0, 0)
