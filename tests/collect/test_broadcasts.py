"""Operations of a loss that broadcast are recorded; the graph and its tensors are unchanged."""

from __future__ import annotations

import contextlib
import gc
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.collect.recording import Recording, needs_sizes, recording
from traincheck.collect.observers import loss_broadcast
from traincheck.collect.observers.loss_broadcast import LossBroadcastObserver
from traincheck.schema.claims import Needs
from traincheck.schema.observations.losses import LossBroadcast

Tensor = torch.Tensor
pytestmark = needs_sizes


def told(run: Recording) -> list[dict[str, object]]:
    return [each for mark in run.marks(LossBroadcast.text) for each in mark.data["operations"]]


def squared(pred: Tensor, y: Tensor) -> Tensor:
    return ((pred - y) ** 2).mean()


def data() -> tuple[nn.Linear, Tensor, Tensor]:
    torch.manual_seed(0)
    return nn.Linear(3, 1), torch.randn(8, 3), torch.randn(8)


def test_names_and_sizes_before_the_call_that_goes_back(tmp_path: Path) -> None:
    model, x, y = data()
    with recording(tmp_path) as run:
        squared(model(x), y).backward()
    assert told(run) == [
        {
            "node": "SubBackward0",
            "shape": [8, 8],
            "inputs": [[["AddmmBackward0", [8, 1]]], None],
        }
    ]
    [mark], [call] = run.marks(LossBroadcast.text), run.calls("torch.autograd.backward")
    assert (mark.step, mark.stage) == (0, "train")
    assert mark.seq < call.seq


def test_where_an_input_comes_from(tmp_path: Path) -> None:
    model, x, y = data()
    with recording(tmp_path) as run:
        ((model(x).squeeze(-1).unsqueeze(1) / 2).exp() * y).mean().backward()
        pred = model(x)
        (y * (pred.squeeze(-1)[:, None] + pred)).sum().backward()
    [first, second] = [inputs for each in told(run) for inputs in each["inputs"] if inputs]
    assert [name for name, _ in first] == [
        "ExpBackward0",
        "DivBackward0",
        "UnsqueezeBackward0",
        "SqueezeBackward1",
        "AddmmBackward0",
    ]
    assert second == [["AddBackward0", [8, 1]]]  # of two inputs


@pytest.mark.parametrize(
    "loss",
    [
        lambda pred, y: squared(pred, y[:, None]),
        lambda pred, y: F.mse_loss(pred.squeeze(-1), y),
        lambda pred, y: (pred + 1).mean(),
        lambda pred, y: F.cross_entropy(pred.expand(-1, 4), torch.zeros(8).long()),
        lambda pred, y: (pred - y).logsumexp(1).mean(),
        lambda pred, y: (pred - y).sum(1).exp().mean(),  # one dim is meant to be there
        lambda pred, y: (pred @ y[None, :]).mean(),
        lambda pred, y: (pred.mean() * y).mean(),
    ],
)
def test_what_does_not_broadcast_or_goes_on(tmp_path: Path, loss) -> None:
    model, x, y = data()
    with recording(tmp_path) as run:
        loss(model(x), y).backward()
    assert told(run) == []


def test_how_often(tmp_path: Path) -> None:
    model, x, y = data()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with recording(tmp_path) as run:
        for _ in range(52):
            optimizer.zero_grad()
            for _ in range(5):
                squared(model(x), y).backward()
            optimizer.step()
    steps = [mark.step for mark in run.marks(LossBroadcast.text)]
    assert sorted(set(steps)) == [*range(8), 50]
    assert steps.count(0) == 4


def test_the_walk_ends(tmp_path: Path, monkeypatch) -> None:
    model, x, y = data()
    seen = []
    inputs = loss_broadcast.inputs
    monkeypatch.setattr(loss_broadcast, "inputs", lambda node: seen.append(node) or inputs(node))
    with recording(tmp_path) as run:
        loss = model(x) - y
        for _ in range(50):
            loss = loss * 2
        loss.mean().backward()
    assert told(run) == []
    assert len(seen) == loss_broadcast._MOST_NODES
    seen.clear()


class Doubled(torch.autograd.Function):
    """Of a program, which may set what it likes."""

    @staticmethod
    def forward(ctx, x):
        ctx.output_nr = "mine"
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class Sub(Doubled):
    """Its node is called SubBackward, and is none."""


class Kept:
    """Lives as long as the node that it is put into."""


class Subclass(torch.Tensor):
    pass


def custom(model, x, y):
    Sub.apply(squared(Doubled.apply(model(x)), y)).backward()
    squared(Doubled.apply(model(x)), y).backward()


def twice(model, x, y):
    loss = squared(model(x), y)
    loss.backward(retain_graph=True)
    loss.backward()


def penalty(model, x, y):
    x = x.clone().requires_grad_()
    squared(model(x), y).backward(create_graph=True)
    x.grad.pow(2).sum().backward()


def cast(model, x, y):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = squared(model(x), y)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(loss).backward()


def again(model, x, y):
    x = x.clone().requires_grad_()
    squared(checkpoint(model, x, use_reentrant=True), y).backward()
    squared(checkpoint(model, x, use_reentrant=False), y).backward()


def several(model, x, y):
    torch.autograd.backward([squared(model(x), y), model(x).sum()])
    torch.autograd.backward(tensors=squared(model(x), y))
    model(x).backward(torch.ones(8, 1))
    squared(model(x), y).as_subclass(Subclass).backward()


def packed(model, x, y):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t + 0, lambda t: t):
        squared(model(x), y).backward()


def nested(model, x, y):
    rows = torch.nested.nested_tensor([x[:3], x[3:]], layout=torch.jagged)
    ((model(rows) * 2) ** 2).values().mean().backward()


def hooked(model, x, y):
    pred = model(x)
    pred.register_hook(lambda grad: grad * 2)
    pred.grad_fn.register_hook(lambda given, out: None)
    squared(pred, y).backward()


def in_place(model, x, y):
    pred = model(x)
    pred[:2].mul_(3)
    squared(pred, y).backward()


CASES = [custom, twice, penalty, cast, again, several, packed, nested, hooked, in_place]
IGNORED = [
    "ignore:Using backward\\(\\) with create_graph",
    "ignore:.*use_reentrant",
    "ignore:None of the inputs have requires_grad",
    "ignore:The PyTorch API of nested tensors",
]


def grads(case) -> list[Tensor]:
    model, x, y = data()
    case(model, x, y)
    return [*(p.grad for p in model.parameters()), torch.rand(1)]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings(*IGNORED)
def test_gradients_are_the_same_to_the_bit(tmp_path: Path, case) -> None:
    plain = grads(case)
    with recording(tmp_path):
        traced = grads(case)
    assert all(torch.equal(one, other) for one, other in zip(plain, traced, strict=True))


@pytest.mark.filterwarnings(*IGNORED)
def test_nodes_of_a_program_are_not_followed(tmp_path: Path) -> None:
    with recording(tmp_path) as run:
        grads(custom)
    [found] = told(run)
    assert found["inputs"] == [[["DoubledBackward", [8, 1]]], None]


def test_compiled_code(tmp_path: Path) -> None:
    model, x, y = data()
    with recording(tmp_path) as run:
        compiled = torch.compile(model, backend="aot_eager")
        squared(compiled(x), y).backward()
        torch.compile(lambda: squared(model(x), y), backend="aot_eager")().backward()
    [found] = told(run)  # of the loss that was not compiled
    assert found["inputs"] == [[["CompiledFunctionBackward", [8, 1]]], None]
    torch._dynamo.reset()


def test_functorch_and_scripts(tmp_path: Path) -> None:
    model, x, y = data()
    weights = dict(model.named_parameters())

    def loss(weights):
        return squared(torch.func.functional_call(model, weights, (x,)), y)

    with recording(tmp_path) as run:
        torch.func.grad(loss)(weights)
        torch.autograd.grad(loss(weights), [*weights.values()])
    assert told(run) == []


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_kept(tmp_path: Path, fails: bool) -> None:
    model, x, y = data()
    gc.collect()
    gc.disable()  # what is freed must be so by its count of references
    try:
        with recording(tmp_path) as run:
            pred = model(x).squeeze(-1).exp()
            loss = (pred * y[:, None]).mean()
            pred.grad_fn.metadata["kept"] = kept = Kept()
            held = [weakref.ref(pred), weakref.ref(kept)]
            if fails:
                with contextlib.suppress(RuntimeError):
                    loss.backward(torch.ones(3))
            else:
                loss.backward()
            del pred, loss, kept
            assert [each() for each in held] == [None, None]
    finally:
        gc.enable()
    assert len(told(run)) == 1


def test_a_failure_of_ours_is_counted(tmp_path: Path, monkeypatch) -> None:
    plain = grads(twice)
    monkeypatch.setattr(loss_broadcast, "kind", lambda node: 1 / 0)
    with recording(tmp_path, must_be_whole=False) as run:
        traced = grads(twice)
    assert all(torch.equal(one, other) for one, other in zip(plain, traced, strict=True))
    assert "ZeroDivisionError" in run.marks("fault")[0].data["reason"]
    assert run.calls("torch.autograd.backward")


@pytest.mark.parametrize(
    ("needs", "is_wanted"),
    [
        (None, True),
        (Needs(states=frozenset({"loss@broadcast"})), True),
        (Needs(states=frozenset({"gradient@backward"})), False),
    ],
)
def test_only_where_it_is_wanted(tmp_path: Path, needs: Needs | None, is_wanted: bool) -> None:
    with recording(tmp_path, needs=needs) as run:
        grads(lambda model, x, y: squared(model(x), y).backward())
    assert bool(told(run)) is is_wanted


def test_torch_that_does_not_tell(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(loss_broadcast, "IS_TOLD", False)
    with recording(tmp_path) as run:
        assert not LossBroadcastObserver(run.session).is_wanted
        grads(twice)
    assert told(run) == []
