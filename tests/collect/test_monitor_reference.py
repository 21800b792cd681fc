"""The reference of a monitored, unedited program: exact differences, and training as without it."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests.collect.recording import recording
from tests.metrics.networks import NETWORKS, batches, loss_of, made
from traincheck.collect.monitor.reference import Reference
from traincheck.metrics.series import Metrics
from traincheck.metrics.trace import combine
from traincheck.schema.claims import Needs
from traincheck.schema.marks import Marks
from traincheck.schema.metrics.requests import INITIAL, MonitorView, parse_requests

COMPARED = MonitorView(
    requests=parse_requests(["diff:rms,absmax", "param_diff:norm"]),
    reference=INITIAL,
    coordinates=True,
)
WEIGHTS = "RCC (W_t-W_0)x_t"


def train(model: nn.Module, optimizer: torch.optim.Optimizer, rows: list[torch.Tensor]) -> None:
    for batch in rows:
        optimizer.zero_grad()
        loss_of(model(batch)).backward()
        optimizer.step()


def compared(folder: Path, model: nn.Module, rows: list[torch.Tensor], view=COMPARED) -> Metrics:
    with recording(folder, needs=Needs(), monitor=view.to_json()) as run:
        train(model, torch.optim.SGD(model.parameters(), 0.1), rows)
    assert not run.marks(Marks.FAULT)
    assert not run.marks(Marks.INSTRUMENT_DISABLED)
    return combine(run.events, view)


@pytest.mark.parametrize("kind", NETWORKS)
def test_exactly_zero_at_first_and_training_as_without_it(tmp_path: Path, kind: str) -> None:
    model, optimizer = made(kind)
    with recording(tmp_path / "run", needs=Needs(), monitor=COMPARED.to_json()) as run:
        train(model, optimizer, batches(kind))
    state = torch.get_rng_state()
    metrics = combine(run.events, COMPARED)
    changes = [key for key in metrics if "difference" in key or key.startswith(WEIGHTS)]
    changes = [key for key in changes if "W_t x_t" not in key]
    assert any(key.startswith("activation_difference") for key in changes)
    assert any(key.startswith(WEIGHTS) for key in changes)
    for key in changes:
        assert metrics[key][0] == 0.0, key
    assert any(metrics[key][3] > 0 for key in changes)

    other, optimizer = made(kind)
    train(other, optimizer, batches(kind))
    assert torch.equal(state, torch.get_rng_state())
    for (name, one), (_, two) in zip(model.state_dict().items(), other.state_dict().items()):
        assert torch.equal(one, two), name


def test_the_numbers_of_a_difference(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, rows = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), list(torch.randn(2, 5, 3))
    first = {name: value.clone() for name, value in model.state_dict().items()}
    initial = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    initial.load_state_dict(first)
    now = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    now.load_state_dict(first)
    train(now, torch.optim.SGD(now.parameters(), 0.1), rows[:1])
    metrics = compared(tmp_path / "run", model, rows)
    with torch.no_grad():
        difference = (now(rows[1]) - initial(rows[1])).double()
        moved = (now[1].weight - initial[1].weight).double()
        term = (now[0](rows[1]) - initial[0](rows[1])).norm(dim=-1).mean()
    rms = difference.square().mean().sqrt().item()
    assert metrics["activation_difference/Sequential/rms"][1] == pytest.approx(rms, rel=1e-5)
    key = "parameter_difference/Sequential.1.weight/norm"
    assert metrics[key][1] == pytest.approx(moved.norm().item(), rel=1e-5)
    assert metrics[f"{WEIGHTS}/Sequential.0/l2norm"][1] == pytest.approx(term.item(), rel=1e-5)


class Picky(nn.Module):
    """Computes something else without gradients, as kernels do that round differently."""

    def __init__(self, *, is_frozen: bool = False) -> None:
        super().__init__()
        self.fc, self.w = nn.Linear(6, 2), nn.Parameter(torch.ones(1), requires_grad=not is_frozen)
        self.register_buffer("mean", torch.zeros(2))
        self.last: torch.Tensor | None = None

    def forward(self, x: torch.Tensor, *, fails: bool = False) -> torch.Tensor:
        kernel = torch.is_grad_enabled() + 2 * self.w.requires_grad + 4 * x.requires_grad
        x = x + 0 if x.is_leaf else x.mul_(1.0)
        self.last = self.fc(x) * (1 + kernel * 1e-3)
        self.mean = self.mean * 0.9 + self.last.mean()
        assert not fails
        return self.last * self.w


@pytest.mark.parametrize("is_frozen", [False, True])
@pytest.mark.parametrize("is_inner", [False, True])
def test_kernels_are_those_of_the_model(tmp_path: Path, is_frozen: bool, is_inner: bool) -> None:
    """Differences are 0 where a kernel depends on gradients of weights or inputs."""
    torch.manual_seed(0)
    model = Picky(is_frozen=is_frozen)
    rows = batches("dict", 2)
    if is_inner:
        rows = [row.requires_grad_() for row in rows]
    with recording(tmp_path / "run", needs=Needs(), monitor=COMPARED.to_json()) as run:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for row in rows:
            optimizer.zero_grad()
            model.mean = model.mean.detach()
            loss_of(model(row * 1.0)).backward()
            optimizer.step()
    metrics = combine(run.events, COMPARED)
    assert not metrics.failed
    for name in ("Picky", "Picky.fc"):
        values = metrics[f"activation_difference/{name}/absmax"]
        assert (values[0], values[1] > 0) == (0.0, True)
    assert metrics[f"{WEIGHTS}/Picky.fc/l2norm"][0] == 0.0


def test_the_graph_of_a_reference_is_freed() -> None:
    """The program sees neither its hooks called nor a mode changed."""
    model, own = Picky(), Picky().requires_grad_(False)
    reference = Reference(own, [("", own), ("fc", own.fc)], fault=pytest.fail)
    reference.attach()
    packed: list[torch.Tensor] = []
    buffer, before = own.mean, own.mean.clone()
    with torch.autograd.graph.saved_tensors_hooks(packed.append, pytest.fail):
        reference.run(model, (torch.ones(3, 6),), {})
    assert not packed
    assert torch.is_grad_enabled()
    assert not any(p.requires_grad for p in own.parameters())
    assert own.mean is buffer
    assert torch.equal(buffer, before)
    assert own.last is not None
    assert own.last.grad_fn is None
    (kept,) = reference.outputs["fc"]
    assert not kept.requires_grad


@pytest.mark.parametrize("fails", [False, True])
def test_a_program_that_runs_the_reference_without_gradients(fails: bool) -> None:
    own = Picky().requires_grad_(False)
    with torch.enable_grad():
        expected = own(torch.ones(3, 6))
    reference = Reference(own, [("", own)], fault=pytest.fail)
    reference.attach()
    with torch.no_grad():
        try:
            own(torch.ones(3, 6), fails=fails)
        except AssertionError:
            assert fails
        else:
            assert torch.equal(reference.outputs[""][0], expected)
        assert not torch.is_grad_enabled()
    reference.detach()
    assert torch.is_grad_enabled()


class Careless(nn.Module):
    """Draws from every generator, and writes into its input."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.seen = nn.Linear(3, 1), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        x.add_(random.random()).mul_(float(np.random.rand()))
        return self.fc(x)


def test_a_forward_that_draws_and_writes_into_its_input(tmp_path: Path) -> None:
    def run(recorded: bool) -> tuple[Careless, list[torch.Tensor], float, float]:
        torch.manual_seed(0), random.seed(0), np.random.seed(0)
        model, rows = Careless(), list(torch.randn(3, 4, 3))
        if recorded:
            compared(tmp_path / "run", model, rows)
        else:
            train(model, torch.optim.SGD(model.parameters(), 0.1), rows)
        return model, rows, random.random(), float(np.random.rand())

    with_us, plain = run(True), run(False)
    assert with_us[2:] == plain[2:]
    assert with_us[0].seen == plain[0].seen == 3
    for one, other in zip(with_us[1], plain[1]):
        assert torch.equal(one, other)
    assert torch.equal(with_us[0].fc.weight, plain[0].fc.weight)


def test_a_model_that_cannot_be_copied_trains_on(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 2))
    model.lock = threading.Lock()
    metrics = compared(tmp_path / "run", model, list(torch.randn(3, 4, 3)))
    assert not [key for key in metrics if "difference" in key]
    assert [one["metric"] for one in metrics.failed] == ["reference"]
    assert "lock" in metrics.failed[0]["error"]
    assert metrics.failed[0]["on"] == "Sequential"


def test_a_forward_that_fails_in_the_middle(tmp_path: Path) -> None:
    class Sometimes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.calls = nn.Linear(3, 1), 0

        def forward(self, x: torch.Tensor, fails: bool = False) -> torch.Tensor:
            if fails:
                self.fc(x[:, :2])
            return self.fc(x)

    torch.manual_seed(0)
    model = Sometimes()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with recording(tmp_path / "run", needs=Needs(), monitor=COMPARED.to_json()) as run:
        for step in range(3):
            if step == 1:
                with pytest.raises(RuntimeError):
                    model(torch.ones(2, 3), fails=True)
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
    metrics = combine(run.events, COMPARED)
    assert not run.marks(Marks.FAULT)
    assert not run.marks(Marks.INSTRUMENT_DISABLED)
    assert metrics["activation_difference/Sometimes/rms"][0] == 0
    # Its reference failed in the same way: the model is left out from then on, and this is said
    assert [one["metric"] for one in metrics.failed] == ["reference"]


def test_forwards_without_gradients_are_not_compared(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 2))
    view = COMPARED.to_json()
    with recording(tmp_path / "run", needs=Needs(), monitor=view) as run, torch.no_grad():
        model(torch.ones(1, 3))
    assert not [key for key in combine(run.events, COMPARED) if "difference" in key]


def test_weights_of_a_file(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, other = nn.Sequential(nn.Linear(3, 2)), nn.Sequential(nn.Linear(3, 2))
    file = tmp_path / "w.pt"
    torch.save({"model": other.state_dict(), "epoch": 3}, file)
    asked = MonitorView(requests=parse_requests(["param_diff:norm"]), reference=str(file))
    expected = (model[0].weight - other[0].weight).norm().item()
    metrics = compared(tmp_path / "run", model, [torch.ones(2, 3)], asked)
    key = "parameter_difference/Sequential.0.weight/norm"
    assert metrics[key][0] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({"1.weight": torch.ones(1)}, "has the weights of another model: 2 are missing"),
        ([torch.ones(1)], "is not a state dict"),
        (Careless(), "Weights only load failed"),
    ],
)
def test_a_file_that_is_not_of_the_model(tmp_path: Path, content: object, text: str) -> None:
    file = tmp_path / "w.pt"
    torch.save(content, file)
    asked = MonitorView(requests=parse_requests(["param_diff:norm"]), reference=str(file))
    metrics = compared(tmp_path / "run", nn.Sequential(nn.Linear(3, 2)), [torch.ones(2, 3)], asked)
    assert not metrics
    assert text in metrics.failed[0]["error"]
