"""TC086: a DTensor parameter that is replicated has other values on another rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.builders import MLP, TraceBuilder
from tests.checking import fires, quiet
from tests.golden import Golden, mentions
from tests.ranks import merged
from tests.torchrun import needs_dtensors, needs_fully_shard, needs_replicas, record_ranks
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict

NAME = "Net.fc1.weight"
REPLICATED = {
    "dims": ["tp"],
    "sizes": [2],
    "placements": ["replicate"],
    "replicas": [0, 1],
}
SHARDED = {**REPLICATED, "placements": ["shard 0"]}
Values = Callable[[int, int], float]  # of a rank and step


def place(layout: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"world": 2, "layouts": [layout], "parameters": {NAME: 0}, "others": 4, **more}


def values(name: str, first: float, dtype: str = "float32") -> dict[str, Any]:
    sums = [first, *(0.25 * i for i in range(1, 16))]
    norm = sum(one * one for one in sums) ** 0.5
    return {"name": name, "role": "parameter", "dtype": dtype, "norm": norm, "sums": sums}


def rank(number: int, placed: dict[str, Any], of: Values, *, dtype: str, steps: int) -> list[Event]:
    trace = TraceBuilder(rank=number).process(world_size=2).model("Net", MLP).optimizer()
    for step in range(steps):
        trace.begin_step().zero_grad().forward().backward().optimizer_step()
        if step == 0:
            trace.mark("placed", **placed)
        trace.mark("replicas", values=[values(NAME, of(number, step), dtype)])
        trace.end_step()
    return trace.build()


def run(
    of: Values, placed: dict[str, Any] | None = None, *, dtype: str = "float32", steps: int = 4
) -> list[Event]:
    """Two ranks. of: the sum that their values have."""
    placed = placed or place(REPLICATED)
    ranks = [rank(number, placed, of, dtype=dtype, steps=steps) for number in (0, 1)]
    return merged(*ranks)


def drift(number: int, step: int) -> float:
    return 1 + 0.1 * step + 0.05 * number * (step + 1)


BROKEN = run(drift)


def test_fires_on_replicas_that_drift_apart(golden: Golden) -> None:
    finding = golden(fires("TC086", BROKEN))
    assert (finding.variables, finding.first_step) == ((NAME,), 0)
    assert mentions(finding, "replicate over tp of 2 ranks")


def test_fires_on_what_never_was_equal() -> None:
    assert fires("TC086", run(lambda number, step: 1.0 + number)).first_step == 0


def test_quiet_on_equal_replicas_and_on_rounding() -> None:
    assert quiet("TC086", run(lambda number, step: 1 + 0.1 * step)) is Verdict.HELD
    assert quiet("TC086", run(lambda number, step: 1 + 0.1 * step + 1e-7 * number)) is Verdict.HELD
    noise = run(lambda number, step: 1 + 1e-4 * step + 1e-3 * number, dtype="bfloat16")
    assert quiet("TC086", noise) is Verdict.HELD


def test_quiet_on_differences_far_below_the_movement() -> None:
    assert quiet("TC086", run(lambda number, step: 1 + step + 1e-3 * number)) is Verdict.HELD


def test_quiet_on_one_comparison_alone() -> None:
    assert quiet("TC086", run(lambda number, step: 1.0 + number * (step == 2))) is Verdict.HELD


def test_quiet_on_shards() -> None:
    alone = {**SHARDED, "replicas": [0]}
    assert quiet("TC086", run(drift, place(alone))) is Verdict.NOT_TRIGGERED


def test_quiet_under_local_sgd() -> None:
    ranks: Sequence[list[Event]] = []
    for number in (0, 1):
        trace = TraceBuilder(rank=number).process(world_size=2).model("Net", MLP)
        trace.optimizer(cls="torch.distributed.optim.PostLocalSGDOptimizer")
        for step in range(4):
            trace.begin_step().forward().backward().optimizer_step()
            trace.mark("placed", **place(REPLICATED))
            trace.mark("replicas", values=[values(NAME, drift(number, step))]).end_step()
        ranks = [*ranks, trace.build()]
    assert quiet("TC086", merged(*ranks)) is Verdict.NOT_TRIGGERED


EXPERTS = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, distribute_tensor

mesh = init_device_mesh("cpu", (WORLD,), mesh_dim_names=("tp",))
gate = nn.Module()
gate.weight = nn.Parameter(distribute_tensor(torch.randn(4, 8), mesh, [Replicate()]))
gate.bias = nn.Parameter(torch.zeros(4))
part = torch.randn(8, 4)[RANK * 4 : RANK * 4 + 4]
optimizer = torch.optim.SGD(gate.parameters(), lr=0.05)  # found before the model


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = gate

    def forward(self, x):
        given = DTensor.from_local(x, mesh, [Replicate()], run_check=False)
        scores = F.linear(given, self.gate.weight)
        placements = [Partial()] if sys.argv[1] == "partial" else None
        return scores.to_local(grad_placements=placements) + self.gate.bias


model = Net()
for step in range(4):
    x = torch.randn(16, 8)
    optimizer.zero_grad()
    (model(x) @ part.T).pow(2).mean().backward()
    dist.all_reduce(gate.bias.grad)
    optimizer.step()
"""
PARALLEL = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.fsdp import fully_shard

kind = sys.argv[1]
model = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
if kind == "tensor":
    mesh = init_device_mesh("cpu", (WORLD,), mesh_dim_names=("tp",))
    parallelize_module(model, mesh, {"1": ColwiseParallel(), "3": RowwiseParallel()})
elif kind == "sharded":
    fully_shard(model)
else:
    mesh = init_device_mesh("cpu", (WORLD, 1), mesh_dim_names=("replicate", "shard"))
    fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
data = torch.Generator().manual_seed(0 if kind == "tensor" else RANK)
for step in range(8):
    optimizer.zero_grad()
    model(torch.randn(16, 8, generator=data)).pow(2).mean().backward()
    optimizer.step()
"""


@needs_dtensors
@pytest.mark.slow
def test_fires_on_a_gradient_that_stays_local(tmp_path: Path) -> None:
    finding = fires("TC086", record_ranks(tmp_path, EXPERTS, "local"))
    assert (finding.variables, finding.first_step) == (("Net.gate.weight",), 0)


@needs_dtensors
@pytest.mark.slow
def test_quiet_on_a_gradient_that_is_summed(tmp_path: Path) -> None:
    assert quiet("TC086", record_ranks(tmp_path, EXPERTS, "partial")) is Verdict.HELD


@needs_fully_shard
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "verdict"),
    [
        ("tensor", Verdict.HELD),  # the bias of the row-wise layer is replicated
        ("sharded", Verdict.NOT_TRIGGERED),
        pytest.param("hybrid", Verdict.HELD, marks=needs_replicas),
    ],
)
def test_quiet_on_models_that_torch_distributes(
    tmp_path: Path, kind: str, verdict: Verdict
) -> None:
    assert quiet("TC086", record_ranks(tmp_path, PARALLEL, kind)) is verdict
