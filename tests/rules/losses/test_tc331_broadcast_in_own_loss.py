"""TC331: a loss that was written by hand, and is over all pairs of samples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from tests.builders import MLP, TraceBuilder
from tests.checking import fires, quiet
from tests.collect.recording import recording
from tests.golden import Golden, mentions
from traincheck.schema.claims import Needs
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict
from traincheck.schema.observations.losses import LossBroadcast

tells_sizes = pytest.mark.skipif(
    not hasattr(torch._C._FunctionBase, "_input_metadata"),
    reason="the graph of this torch does not tell sizes",
)
Tensor = torch.Tensor
Shape = tuple[int, ...]
Sources = list[tuple[str, Shape]] | None

COLUMN: Sources = [("AddmmBackward0", (32, 1))]
ROW: Sources = [("SqueezeBackward1", (32,)), ("AddmmBackward0", (32, 1))]


def run(
    *inputs: Sources,
    shape: Shape = (32, 32),
    node: str = "SubBackward0",
    steps: int = 3,
    size: int = 32,
    more: tuple[dict[str, object], ...] = (),
) -> list[Event]:
    """Steps in which an operation of a loss has such a result of such inputs."""
    trace = TraceBuilder().process().model("Net", MLP).optimizer()
    operation = {"node": node, "shape": [*shape], "inputs": [*inputs]}
    for _ in range(steps):
        trace.begin_step().batch(size=size).zero_grad().forward(batch_size=size)
        trace.mark(LossBroadcast.text, operations=[operation, *more])
        trace.backward().optimizer_step()
    return trace.end_step().build()


BROKEN = run(COLUMN, None, steps=5)


def test_fires_once_at_the_first_step(golden: Golden) -> None:
    finding = fires("TC331", BROKEN)
    assert (finding.first_step, finding.violations) == (0, 1)
    assert finding.severity == "warning"
    assert finding.subject.api == "torch.autograd.backward"
    golden(finding)
    assert mentions(finding, "[32, 1]", "[32]", "[32, 32]")


@pytest.mark.parametrize(
    ("events", "shapes"),
    [
        (run(ROW, None, node="MulBackward0"), ["[32]", "[32, 1]", "[32, 32]"]),
        (
            run(None, [("ExpBackward0", (32,)), ("SubBackward0", (32,))], node="MinimumBackward0"),
            ["[32]", "[32, 1]", "[32, 32]"],
        ),
        (
            run([("SelectBackward0", (32, 1, 1))], None, shape=(32, 1, 32), node="Atan2Backward0"),
            ["Atan2", "[32, 1, 1]", "[32]", "[32, 1, 32]"],
        ),
    ],
    ids=["product", "minimum", "other"],
)
def test_names_both_shapes(events: list[Event], shapes: list[str], golden: Golden) -> None:
    assert mentions(golden(fires("TC331", events)), *shapes)


def test_an_agent_that_is_called_for_each_row() -> None:
    assert fires("TC331", agent(7)).first_step == 0
    assert quiet("TC331", agent(8)) is Verdict.HELD


def agent(calls: int) -> list[Event]:
    trace = TraceBuilder().process().model("Net", MLP).optimizer()
    stacked = {"node": "MulBackward0", "shape": [7, 7], "inputs": [[("StackBackward0", (7, 1))]]}
    for _ in range(3):
        trace.begin_step().zero_grad()
        for _ in range(calls):
            trace.forward(batch_size=1)
        trace.mark(LossBroadcast.text, operations=[stacked]).backward().optimizer_step()
    return trace.end_step().build()


def added(name: str) -> Sources:
    return [(name, (32, 1)), ("SqueezeBackward1", (32,)), ("AddmmBackward0", (32, 1))]


@pytest.mark.parametrize(
    "events",
    [
        run(COLUMN, None, steps=1),
        run(COLUMN, None, size=16),  # of quantiles, not of the batch
        run(COLUMN, None, shape=(32, 8)),
        run(COLUMN, ROW),  # gradients on both sides
        run(COLUMN, None, more=({"node": "Sub", "shape": [32, 32], "inputs": [COLUMN, ROW]},)),
        run([("AddmmBackward0", (1, 32))], None),
        run([("AddmmBackward0", (3, 1))], None, shape=(3, 3), size=3),
        run(added("UnsqueezeBackward0"), None),
        run(added("ViewBackward0"), None),
        run(added("ExpandBackward0"), None),
        run([("ExpBackward0", (32, 1)), *(added("ViewBackward0") or [])], None),
        run([("ViewBackward0", (32, 1))], None),  # of what, is not known
        run([("TransposeBackward0", (32, 1)), ("AddmmBackward0", (1, 32))], None),
        run([("AccumulateGrad", (32, 1))], None),
        run([("SubBackward0", None)], None),  # type: ignore[list-item]
        TraceBuilder().process().model("Net", MLP).optimizer().steps(3).build(),
    ],
)
def test_quiet(events: list[Event]) -> None:
    assert quiet("TC331", events) in (Verdict.HELD, Verdict.NOT_TRIGGERED)


# -- recorded runs: each loss is of predictions (N, 1), targets (N,) and inputs (N, 6)

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def rmse(pred: Tensor, y: Tensor, x: Tensor) -> Tensor:
    return torch.sqrt(torch.mean((pred - y) ** 2) + 1e-8)


def log_cosh(pred: Tensor, y: Tensor, x: Tensor) -> Tensor:
    return 0.5 * torch.log(torch.cosh(y - pred)).mean() + 0.1 * pred.abs().mean()


def summed(pred: Tensor, y: Tensor, x: Tensor) -> Tensor:
    return (pred.view(-1) - y[:, None]).abs().sum() / len(y)


def by_dim(pred: Tensor, y: Tensor, x: Tensor) -> Tensor:
    return ((pred - y) ** 2).sum(1).mean()


def weighted(pred: Tensor, y: Tensor, x: Tensor) -> Tensor:
    losses = F.mse_loss(pred.squeeze(-1), y, reduction="none")
    return (losses * x[:, :1].abs()).mean()


def clipped(pred: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """Of a policy, an entropy and a value: one of several terms is wrong."""
    ratio = (pred.squeeze(-1) - pred.squeeze(-1).detach()).exp()
    gain = torch.min(ratio * x[:, :1], ratio.clamp(0.8, 1.2) * x[:, :1])
    value = F.mse_loss(pred.squeeze(-1), y)
    return -gain.mean() + 0.5 * value - 0.01 * pred.exp().mean()


def norm(pred: Tensor, y: Tensor, x: Tensor) -> Tensor:
    return torch.norm(pred - y)


def likelihood(pred: Tensor, y: Tensor, x: Tensor) -> Tensor:
    return -torch.distributions.Normal(pred, torch.ones_like(pred)).log_prob(y).mean()


def agreeing(pred: Tensor, y: Tensor, x: Tensor) -> Tensor:
    return torch.sqrt(torch.mean((pred - y.view_as(pred)) ** 2) + 1e-8)


def ranking(pred: Tensor, y: Tensor, x: Tensor) -> Tensor:
    pairs = torch.sign(y[:, None] - y[None, :])
    return F.softplus(-pairs * (pred - pred.T)).mean()


def ranking_by_none(pred: Tensor, y: Tensor, x: Tensor) -> Tensor:
    scores = pred.squeeze(-1)
    return torch.relu(1 - (scores[:, None] - scores[None, :].detach())).mean()


def cox(pred: Tensor, y: Tensor, x: Tensor) -> Tensor:
    at_risk = (y[None, :] >= y[:, None]).float()
    theta = pred.reshape(-1)
    return -torch.mean((theta - torch.log((theta.exp() * at_risk).sum(dim=1))) * (y > 0))


def energy(pred: Tensor, y: Tensor, x: Tensor) -> Tensor:
    return 2 * (pred - y).abs().mean() - (pred - pred.T).abs().mean()


def energy_by_view(pred: Tensor, y: Tensor, x: Tensor) -> Tensor:
    scaled = pred.squeeze(-1).unsqueeze(1) / 0.3
    return (scaled - y / 0.3).pow(2).neg().exp().mean()


def quantiles(pred: Tensor, y: Tensor, x: Tensor) -> Tensor:
    taus = torch.linspace(0.1, 0.9, 9)
    error = y[:, None] - pred
    return torch.maximum(taus * error, (taus - 1) * error).mean()


def quantile_regression(pred: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """QR-DQN: each quantile of a sample is compared with each target of it."""
    atoms = pred.expand(-1, 32)
    error = (y[:, None] + torch.zeros(32))[:, None, :] - atoms[:, :, None]
    huber = torch.where(error.abs() <= 1, 0.5 * error**2, error.abs() - 0.5)
    return (torch.rand(32)[None, :, None] - (error < 0).float()).abs().mul(huber).sum(1).mean()


def contrastive(pred: Tensor, y: Tensor, x: Tensor) -> Tensor:
    z = F.normalize(pred * x, dim=-1)
    logits = z @ z.T / 0.1 + torch.eye(len(z)) * -1e9
    positive = (y[:, None] * y[None, :] > 0).float()
    log_prob = logits - torch.log(logits.exp().sum(1, keepdim=True))
    return -(log_prob * positive).sum() / positive.sum().clamp(min=1)


def kernels(pred: Tensor, y: Tensor, x: Tensor) -> Tensor:
    z, other = pred * x, torch.randn(len(x), 6)
    here, there = torch.cdist(z, z), torch.cdist(z, other)
    return torch.exp(-(here**2)).mean() - 2 * torch.exp(-(there**2)).mean()


def outer(pred: Tensor, y: Tensor, x: Tensor) -> Tensor:
    return (torch.outer(pred[:, 0], pred[:, 0]) - torch.outer(y, y)).pow(2).mean()


def bins(pred: Tensor, y: Tensor, x: Tensor) -> Tensor:
    soft = torch.softmax(-((pred - torch.linspace(-2, 2, 32)) ** 2), dim=1)
    return -(soft.mean(0) + 1e-6).log().mean()


def attention(pred: Tensor, y: Tensor, x: Tensor) -> Tensor:
    z = pred * x
    scores = (z @ z.T).masked_fill(torch.ones(len(z), len(z)).triu(1) > 0, -1e9)
    return ((scores.softmax(-1) @ x)[:, 0] - y).pow(2).mean()


WRONG = (rmse, log_cosh, summed, by_dim, weighted, clipped, norm, likelihood)
MEANT = (
    agreeing, ranking, ranking_by_none, cox, energy, energy_by_view, quantiles,
    quantile_regression, contrastive, kernels, outer, bins, attention,
)  # fmt: skip
NEEDS = Needs(
    states=frozenset({"loss@broadcast"}),
    calls=frozenset({"torch.autograd.backward", "torch.nn.Module.forward"}),
    kinds=frozenset({"batch", "mark", "step"}),
)


def trained(folder: Path, loss: Loss, *, needs: Needs | None = None, loads: bool = True) -> list:
    x = torch.randn(96, 6)
    y = x[:, 0] - x[:, 1]
    batches = DataLoader(TensorDataset(x, y), 32) if loads else [(x[:32], y[:32])] * 3
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    with recording(folder, needs=needs) as run:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for inputs, targets in batches:
            optimizer.zero_grad()
            loss(model(inputs), targets, inputs).backward()
            optimizer.step()
    return run.events


@tells_sizes
@pytest.mark.parametrize("loss", WRONG)
def test_losses_that_broadcast(tmp_path: Path, loss: Loss) -> None:
    finding = fires("TC331", trained(tmp_path / "run", loss))
    assert finding.first_step == 0
    assert mentions(finding, "[32, 32]")


@pytest.mark.parametrize("loss", MEANT)
def test_losses_that_are_meant(tmp_path: Path, loss: Loss) -> None:
    events = trained(tmp_path / "run", loss)
    assert quiet("TC331", events) in (Verdict.HELD, Verdict.NOT_TRIGGERED)


@tells_sizes
@pytest.mark.parametrize("loads", [True, False])
def test_what_the_rule_asks_for_is_enough(tmp_path: Path, loads: bool) -> None:
    assert fires("TC331", trained(tmp_path / "run", rmse, needs=NEEDS, loads=loads))
