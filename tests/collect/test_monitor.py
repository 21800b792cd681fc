"""The monitor of a recorded program: when it measures, what it leaves out, what it survives."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.collect.recording import recording
from traincheck.collect.instruments.monitor import Monitor
from traincheck.collect.monitor.measure import Measure
from traincheck.metrics.series import Metrics
from traincheck.metrics.trace import combine
from traincheck.schema.claims import Needs
from traincheck.schema.metrics.requests import MetricRequest, MonitorView, parse_requests
from traincheck.schema.metrics.sums import STATISTICS


def view(*requests: str, **more) -> MonitorView:
    return MonitorView(requests=parse_requests(requests), **more)


def settings(found: MonitorView, **more) -> dict:
    return {"needs": Needs(), "monitor": found.to_json(), **more}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.out = nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, x):
        return self.out(torch.relu(self.fc(x)))


def trained(steps: int, *sizes: int, model: nn.Module | None = None) -> list[torch.Tensor]:
    """Train; returns the batches."""
    torch.manual_seed(0)
    model = Net() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    given = []
    for _ in range(steps):
        optimizer.zero_grad()
        for size in sizes or (4,):
            given.append(torch.randn(size, 3))
            model(given[-1]).mean().backward()
        optimizer.step()
    return given


def test_micro_batches_are_exact(tmp_path: Path) -> None:
    asked = view("in:mean,std", "act:count")
    with recording(tmp_path / "run", **settings(asked)) as run:
        given = trained(2, 4, 12)
    metrics = combine(run.events, asked)
    for step in range(2):
        rows = torch.cat(given[2 * step : 2 * step + 2]).double()
        assert metrics["input/Net/mean"][step] == pytest.approx(rows.mean().item(), abs=1e-7)
        std = rows.std(unbiased=False).item()
        assert metrics["input/Net/std"][step] == pytest.approx(std, abs=1e-7)
        assert metrics["activation/Net/count"][step] == 16


def test_every_and_warmup(tmp_path: Path) -> None:
    asked = view("act:rms", "update:ratio")
    with recording(tmp_path / "run", **settings(asked, every=5, warmup=2, whole=True)) as run:
        trained(13)
    assert combine(run.events, asked).steps == [0, 1, 5, 10]


def test_the_last_step_is_kept(tmp_path: Path) -> None:
    asked = view("grad:norm")
    with recording(tmp_path / "run", **settings(asked)) as run:
        trained(1)
    assert combine(run.events, asked).steps == [0]


def test_steps_between_measure_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    for name in ("call", "before_update", "after_update", "parameters", "gradients"):
        original = getattr(Measure, name)

        def counted(self, *args, _original=original, _name=name, **kwargs):
            calls.append(_name)
            return _original(self, *args, **kwargs)

        monkeypatch.setattr(Measure, name, counted)
    with recording(tmp_path / "run", **settings(view("act:rms", "grad:norm"), every=50)):
        trained(2)
        assert calls
        calls.clear()
        model = Net()
        model(torch.ones(1, 3))
    assert not calls


def test_evaluation_is_apart(tmp_path: Path) -> None:
    asked = view("act:mean")
    with recording(tmp_path / "run", **settings(asked)) as run:
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        x = torch.randn(5, 3)
        expected = model(x).mean()
        expected.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            later = model(x * 100).mean().item()
    metrics = combine(run.events, asked)
    assert metrics["activation/Net/mean"][0] == pytest.approx(expected.item(), abs=1e-6)
    assert metrics["eval/activation/Net/mean"][0] == pytest.approx(later, rel=1e-5)


def test_modules_and_exclude(tmp_path: Path) -> None:
    asked = view("act:rms", "grad:norm", modules=r"Net\.", exclude=r".*out")
    with recording(tmp_path / "run", **settings(asked)) as run:
        trained(1)
    assert set(combine(run.events, asked)) == {
        "activation/Net.fc/rms",
        "gradient/Net.fc.weight/norm",
        "gradient/Net.fc.bias/norm",
    }


def test_per_row_and_feature(tmp_path: Path) -> None:
    asked = MonitorView(
        requests=(MetricRequest(on="parameter", statistics=("norm",), modules=".*fc", per="row"),)
    )
    model = Net()
    with recording(tmp_path / "run", **settings(asked)) as run:
        before = model.fc.weight.detach().clone()
        trained(1, model=model)
    metrics = combine(run.events, asked)
    for index, row in enumerate(before):
        key = f"parameter/Net.fc.weight.row_{index}/norm"
        assert metrics[key][0] == pytest.approx(row.norm().item(), rel=1e-6)


@pytest.mark.parametrize("fused", [False, True])
def test_scaled_losses(tmp_path: Path, fused: bool) -> None:
    """Gradients are those of the loss, also where the optimizer divides by the scale inside."""
    asked = view("grad:norm", "act_grad:norm")
    found: list[Metrics] = []
    for scale in (1.0, 1024.0):
        with recording(tmp_path / f"run{scale}", **settings(asked)) as run:
            torch.manual_seed(0)
            model, x = Net(), torch.randn(4, 3)
            optimizer = torch.optim.AdamW(model.parameters(), 0.1, fused=fused)
            scaler = torch.amp.GradScaler("cpu", init_scale=scale)
            for _ in range(2):
                optimizer.zero_grad()
                scaler.scale(model(x).mean()).backward()
                scaler.step(optimizer)
                scaler.update()
        found.append(combine(run.events, asked))
    plain, scaled = found
    assert plain.keys() == scaled.keys()
    assert any(key.startswith("activation_gradient") for key in plain)
    for key, values in plain.items():
        assert values == pytest.approx(dict(scaled[key]), rel=1e-5), key


def test_reasons_of_what_is_left_out(tmp_path: Path) -> None:
    class Ids(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb, self.used = nn.Embedding(5, 2), nn.Linear(2, 1)
            self.unused = nn.Linear(2, 1)

        def forward(self, ids):
            return self.used(self.emb(ids)), ids

    asked = view("act:rms", "in:rms", "grad:norm")
    with recording(tmp_path / "run", **settings(asked)) as run:
        model = Ids()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(2):
            model(torch.tensor([1, 2]))[0].sum().backward()
            optimizer.step()
    events = run.of("metrics")
    names = {n: name for event in events for n, name in event.names.items()}
    reasons = {names[n]: why for event in events for n, why in event.skipped.items()}
    assert reasons["input/Ids"] == reasons["activation/Ids[1]"] == "dtype int64"
    assert reasons["gradient/Ids.unused.weight"] == "no gradient"
    assert not events[1].skipped
    assert not events[1].names


PLUGIN = """
import random
import torch
import traincheck

random.random(), torch.rand(3)

@traincheck.metric("activation", regex=".*fc")
def spread(x):
    torch.rand(2)
    return x.amax(-1) - x.amin(-1)

@traincheck.metric("parameter", name="first")
def of_parameter(p):
    return p.reshape(-1)[0]

@traincheck.metric("gradient")
def broken(g):
    raise RuntimeError("no luck")

@traincheck.metric("activation", per="feature", regex=".*fc")
def each(x):
    return {"mean": x.mean()}
"""


def test_plugins(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PLUGIN, encoding="utf-8")
    (tmp_path / "wrong.py").write_text("1 / 0", encoding="utf-8")
    asked = view(plugins=(str(tmp_path / "mine.py"), str(tmp_path / "wrong.py")))
    with recording(tmp_path / "run", **settings(asked)) as run:
        torch.manual_seed(0)
        model = Net()
        first = model.fc.weight[0, 0].item()
        out = []
        model.fc.register_forward_hook(lambda m, a, r: out.append(r.detach()))
        trained(2, 4, 12, model=model)
        state = torch.get_rng_state()
    metrics = combine(run.events, asked)
    values = torch.cat([(o.amax(-1) - o.amin(-1)) for o in out[:2]])
    key = "activation/Net.fc/spread"
    assert metrics[key][0] == pytest.approx(values.mean().item(), rel=1e-6)
    assert metrics["parameter/Net.fc.weight/first"][0] == pytest.approx(first)
    for index, mean in enumerate(torch.cat(out[:2]).mean(0).tolist()):
        key = f"activation/Net.fc.feature_{index}/each/mean"
        assert metrics[key][0] == pytest.approx(mean, abs=1e-6)
    failed = {(one["metric"], one["error"]) for one in metrics.failed}
    assert failed == {
        ("broken", "RuntimeError: no luck"),
        ("wrong.py", "ZeroDivisionError: division by zero"),
    }
    torch.manual_seed(0)
    trained(2, 4, 12, model=Net())
    assert torch.equal(state, torch.get_rng_state())


def test_a_fault_of_ours_stays_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args, **kwargs):
        raise RuntimeError("ours")

    for name in ("call", "before_update", "after_update"):
        monkeypatch.setattr(Measure, name, broken)
    with recording(tmp_path / "run", must_be_whole=False, **settings(view("act:rms"))) as run:
        given = trained(3)
    assert len(given) == 3
    assert run.marks("fault")


def test_not_installed_unless_it_is_asked_for(tmp_path: Path) -> None:
    with recording(tmp_path / "run") as run:
        trained(2)
        assert not any(isinstance(each, Monitor) for each in run.session.installed)
    assert not run.of("metrics")


def test_beside_a_whole_recording(tmp_path: Path) -> None:
    asked = view("act:mean", "grad:norm")
    with recording(tmp_path / "alone", **settings(asked)) as alone:
        trained(3)
    with recording(tmp_path / "whole", monitor=asked.to_json()) as whole:
        trained(3)
    assert whole.calls("torch.nn.Module.forward") or whole.of("call")
    assert combine(alone.events, asked) == combine(whole.events, asked)


def test_wrapped_and_compiled_models_are_measured_once(tmp_path: Path) -> None:
    asked = view("act:count")
    with recording(tmp_path / "run", **settings(asked)) as run:
        model = Net()
        wrapped = nn.DataParallel(model)  # without devices it only calls its module
        trained(1, model=wrapped)
        trained(1, model=torch.compile(model, backend="eager"))
    metrics = combine(run.events, asked)
    assert metrics["activation/Net/count"] == {0: 8}  # each call of four rows once
    assert metrics["activation/Net.fc/count"] == {0: 16}


def test_statistics_are_documented() -> None:
    assert all(each.help for each in STATISTICS.values())
