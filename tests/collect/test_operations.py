"""Functions of torch that a program calls: numbers of their calls, and what training notices."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from tests.collect.recording import Recording, recording
from traincheck.collect.tensors.operation_looks import few
from traincheck.schema.claims import Needs
from traincheck.schema.observations.operations import OperationUses

ROWS, CLASSES = 16, 5


@pytest.fixture(autouse=True)
def forget_compilations() -> None:
    """A process in which something was compiled is not looked at; other tests may have done so."""
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


class Net(nn.Module):
    def __init__(self, inner: Callable[[Tensor], Tensor] = torch.relu) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, CLASSES)
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.inner(self.first(x)))  # type: ignore[no-any-return]


def train(
    inner: Callable[[Tensor], Tensor] = torch.relu,
    loss_of: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
    steps: int = 4,
) -> list[float]:
    torch.manual_seed(0)
    net = Net(inner)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    for _ in range(steps):
        x, y = torch.randn(ROWS, 6), torch.randint(0, CLASSES, (ROWS,))
        loss = loss_of(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    return [float(p.detach().double().sum()) for p in net.parameters()]


def uses(run: Recording, look: str) -> list[dict[str, Any]]:
    """The uses of one look, of all steps."""
    return [
        use
        for mark in run.marks(OperationUses.text)
        for use in mark.data["uses"]
        if use["look"] == look
    ]


def numbers_of(folder: Path, look: str, inner: Callable[[Tensor], Tensor]) -> dict[str, float]:
    """The numbers of a look at the line of a module that calls a function, in the first step."""
    with recording(folder) as run:
        train(inner)
    found = [use for use in uses(run, look) if "test_operations.py" in use["where"]]
    assert found, run.marks(OperationUses.text)
    return dict(found[0]["numbers"])


@pytest.mark.parametrize(
    ("look", "inner", "number", "value"),
    [
        ("softmax", lambda h: h * h[:, :1].softmax(-1), "over", 1),
        ("softmax", lambda h: h * h.softmax(-1), "over", 8),
        ("softmax", lambda h: h * (1e4 * h.detach()).softmax(-1), "sharp", 1),
        ("softmax", lambda h: h * (0 * h.detach()).softmax(-1), "even", 1),
        ("reduction", lambda h: h - h.mean(0, keepdim=True), "mixes", 1),
        ("reduction", lambda h: h - h.mean(), "mixes", 1),
        ("reduction", lambda h: h - h.mean(1, keepdim=True), "mixes", 0),
        ("reduction", lambda h: h - h[:, :1].mean(1, keepdim=True), "over", 1),
        ("limit", lambda h: h.clamp(-1e3, 1e3), "changed", 0),
        ("limit", lambda h: h.clamp(min=1e3) + h, "changed", 1),
        ("rectifier", lambda h: torch.relu(h - 1e3) + h, "zero", 1),
        ("mask", lambda h: h.masked_fill(torch.ones(ROWS, 8).bool(), 1e-9) + h, "hidden", 1),
        ("mask", lambda h: h.masked_fill(h < -1e3, 0.0), "hidden", 0),
        ("choice", lambda h: torch.where(h < 1e3, h, 0.0), "hidden", 0),
        ("factor", lambda h: h * (torch.arange(8) > 3).float(), "hidden", 0.5),
        ("factor", lambda h: h * torch.full((8,), 0.5), "binary", 0),
        ("factor", lambda h: h + h * torch.zeros(8), "binary", 0),
        ("singular", lambda h: h + (h - h).abs().add(1.0).log(), "near", 0),
        ("singular", lambda h: h + torch.relu(h - 1e3).add(1e-20).sqrt(), "near", 1),
        ("dropout", lambda h: F.dropout(h, 0.0), "rate", 0),
        ("dropout", lambda h: F.dropout(h, 0.1, training=False), "off", 1),
        ("even", lambda h: h + torch.sigmoid(h + 1e3), "one_value", 1),
    ],
)  # fmt: skip
def test_numbers_of_a_function(
    tmp_path: Path, look: str, inner: Callable[[Tensor], Tensor], number: str, value: float
) -> None:
    assert numbers_of(tmp_path, look, inner)[number] == pytest.approx(value)


def test_calls_that_torch_makes_by_itself_are_no_lines_of_the_program(tmp_path: Path) -> None:
    with recording(tmp_path) as run:
        train(torch.tanh)
    found = {use["look"] for mark in run.marks(OperationUses.text) for use in mark.data["uses"]}
    assert "limit" not in found  # of clip_grad_norm_
    assert "singular" not in found  # of AdamW


def test_steps_that_are_looked_at(tmp_path: Path) -> None:
    with recording(tmp_path) as run:
        train(steps=54)
    steps = [mark.step for mark in run.marks(OperationUses.text)]
    assert steps == [0, 1, 2, 3, 4, 5, 50]


def test_a_check_that_needs_none_gets_none(tmp_path: Path) -> None:
    with recording(tmp_path, needs=Needs(kinds=frozenset({"step"}))) as run:
        train()
    assert not run.marks(OperationUses.text)


# -- targets


def targets(folder: Path, ids_and_target: Callable[[], tuple[Tensor, Tensor]]) -> dict[str, float]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with recording(folder) as run:
        for _ in range(3):
            ids, target = ids_and_target()
            F.cross_entropy(net(ids).transpose(1, 2), target).backward()
            optimizer.step()
            optimizer.zero_grad()
    return dict(uses(run, "target")[-1]["numbers"])


def _next() -> tuple[Tensor, Tensor]:
    ids = torch.randint(0, 20, (4, 9))
    return ids[:, :-1], ids[:, 1:]


def _same() -> tuple[Tensor, Tensor]:
    ids = torch.randint(0, 20, (4, 9))
    return ids, ids.clone()


def _ignored() -> tuple[Tensor, Tensor]:
    ids = torch.randint(0, 20, (4, 9))
    return ids[:, :-1], ids[:, 1:].masked_fill(torch.arange(8) > 3, -100)


def _other() -> tuple[Tensor, Tensor]:
    return torch.randint(0, 20, (4, 9)), torch.randint(0, 20, (4, 9))


@pytest.mark.parametrize(
    ("made", "shift"), [(_next, 1), (_same, 0), (_ignored, 1), (_other, None)]
)  # fmt: skip
def test_a_target_that_is_an_input(
    tmp_path: Path, made: Callable[[], tuple[Tensor, Tensor]], shift: int | None
) -> None:
    found = targets(tmp_path, made)
    assert [name for name, value in found.items() if value] == (
        [] if shift is None else [f"shift_{shift}"]
    )


@pytest.mark.parametrize("leaks", [True, False])
def test_a_target_that_is_a_feature(tmp_path: Path, leaks: bool) -> None:
    net = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with recording(tmp_path) as run:
        for _ in range(3):
            x = torch.randn(ROWS, 6)
            target = x[:, 4:5].clone() if leaks else torch.randn(ROWS, 1)
            F.mse_loss(net(x), target).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert uses(run, "target")[-1]["numbers"] == {"feature": float(leaks)}


# -- evaluations


def evaluated(net: nn.Module, batches: int = 6) -> list[float]:
    net.eval()
    with torch.no_grad():
        found = [float(net(torch.randn(4, 3, 8)).double().sum()) for _ in range(batches)]
    net.train()
    return found


def encoder() -> list[float]:
    """Training with evaluations, of a module that computes otherwise when its calls are seen."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    net = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    found = []
    for _ in range(3):
        net(torch.randn(4, 3, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        found += evaluated(net)
    return [*found, *(float(p.detach().double().sum()) for p in net.parameters())]


def test_evaluation_is_the_same_to_the_last_bit(tmp_path: Path) -> None:
    plain = encoder()
    with recording(tmp_path) as run:
        assert encoder() == plain
    assert uses(run, "input")


def test_first_calls_of_an_evaluation_are_looked_at(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with recording(tmp_path) as run:
        for step in range(9):
            net(torch.randn(4, 3, 8)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 7:
                evaluated(net)
    marks = run.marks(OperationUses.text)
    assert [use["calls"] for use in marks[-1].data["uses"] if use["look"] == "input"] == [4]
    assert marks[-1].step == 8


# -- what training notices


def test_training_is_the_same_to_the_last_bit(tmp_path: Path) -> None:
    plain = train()
    with recording(tmp_path):
        assert train() == plain
    assert not torch._C._len_torch_function_stack()


class Counting(TorchFunctionMode):
    """A mode of the program."""

    calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        type(self).calls += 1
        return func(*args, **(kwargs or {}))


def test_modes_of_a_program_are_taken_out_as_it_does(tmp_path: Path) -> None:
    """A step begins and ends within them, and they end within a step."""
    with recording(tmp_path) as run:
        mode = Counting()
        mode.__enter__()
        train(steps=2)
        device = torch.device("cpu")
        with device:
            train(steps=2)
        mode.__exit__(None, None, None)
        train(steps=1)
    assert Counting.calls > 20
    assert not torch._C._len_torch_function_stack()
    assert len(run.marks(OperationUses.text)) == 3  # none within the device


@pytest.mark.parametrize("default", [True, False])
def test_a_device_that_is_entered_is_left(tmp_path: Path, default: bool) -> None:
    """Steps begin within it; what is on top is taken out at its end."""
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with recording(tmp_path):
        context = torch.device("cpu")
        torch.set_default_device("cpu") if default else context.__enter__()
        try:
            for _ in range(3):
                net(torch.randn(ROWS, 6)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        finally:
            torch.set_default_device(None) if default else context.__exit__(None, None, None)
        assert torch._C._len_torch_function_stack() <= 1  # of ours
    assert not torch._C._len_torch_function_stack()


def test_a_program_that_compiles_is_looked_at_no_more(tmp_path: Path) -> None:
    def compiles(step: int, net: nn.Module) -> nn.Module:
        return torch.compile(net, backend="eager") if step == 1 else net  # type: ignore[no-any-return]

    net: nn.Module = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with recording(tmp_path) as run:
        for step in range(4):
            net = compiles(step, net)
            net(torch.randn(ROWS, 6)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            assert not torch._C._len_torch_function_stack() or step < 1
    assert [mark.step for mark in run.marks(OperationUses.text)][:1] == [0]
    assert all(mark.step < 2 for mark in run.marks(OperationUses.text))


def test_calls_are_recorded_once(tmp_path: Path) -> None:
    """Functions that are replaced see a call once, whether the mode is there or not."""

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return (F.cross_entropy(out, y) * 2).mean()

    with recording(tmp_path) as run:
        train(loss_of=loss, steps=9)
    by_step = [
        [call.api for call in run.of("call") if call.step == step] for step in range(2, 9)
    ]  # the fingerprints of a step do not depend on it
    assert [step.count("torch.nn.functional.cross_entropy") for step in by_step] == [1] * 7


def test_a_fault_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("broken")

    plain = train()
    monkeypatch.setattr("traincheck.collect.observers.operations.Call", broken)
    with recording(tmp_path, must_be_whole=False) as run:
        assert train() == plain
    assert run.marks("fault")


@pytest.mark.parametrize("shape", [(64, 32, 26, 26), (5000,), (3, 100_000), (100_000, 3)])
@pytest.mark.parametrize("dense", [True, False])
def test_elements_that_are_read_are_spread_over_all_dims(
    shape: tuple[int, ...], dense: bool
) -> None:
    places = torch.arange(torch.Size(shape).numel()).view(shape)
    seen = few(places if dense else places.transpose(0, -1))
    assert 500 < seen.numel() <= 4096
    for dim, size in enumerate(shape):
        stride = places.stride(dim)
        met = seen.reshape(-1).div(stride, rounding_mode="floor") % size
        assert met.unique().numel() >= min(size, 4)
