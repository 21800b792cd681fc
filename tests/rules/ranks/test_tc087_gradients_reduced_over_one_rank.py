"""TC087: wrappers that reduce gradients over a group of one rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.checking import fires, quiet
from tests.golden import Golden, mentions
from tests.rules.ranks.test_tc086_replicated_parameter_differs import NAME, drift, run
from tests.torchrun import needs_fully_shard, record_ranks
from traincheck.schema.findings import Verdict


def alone(**more: Any) -> dict[str, Any]:
    group = {
        "model": "Net",
        "kind": "FullyShardedDataParallel",
        "strategy": "NO_SHARD",
        "ranks": [0],
    }
    placed = {"world": 2, "layouts": [], "parameters": {}, "groups": [group], "alone": [NAME]}
    return {**placed, "others": 0, **more}


BROKEN = run(drift, alone())


def test_fires_where_ranks_that_began_equal_drift_apart(golden: Golden) -> None:
    finding = golden(fires("TC087", BROKEN))
    assert (finding.subject.module, finding.first_step) == ("Net", 0)
    assert mentions(finding, "FullyShardedDataParallel (NO_SHARD) over one rank")


def test_quiet_where_ranks_stay_equal() -> None:
    assert quiet("TC087", run(lambda rank, step: 1 + 0.1 * step, alone())) is Verdict.HELD


def test_quiet_on_different_models() -> None:
    far = run(lambda rank, step: 1 + 0.1 * step - 9 * rank, alone())
    assert quiet("TC087", far) is Verdict.NOT_TRIGGERED


def test_quiet_where_a_part_is_reduced_over_several_ranks() -> None:
    assert quiet("TC087", run(drift, alone(others=2))) is Verdict.NOT_TRIGGERED


WRAPPED = """
import warnings
warnings.simplefilter("ignore")
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

kind = sys.argv[1]
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
own = [dist.new_group([number]) for number in range(WORLD)][RANK]
whole = dist.new_group(list(range(WORLD)))
cpu = torch.device("cpu")
if kind == "ddp of one":
    model = nn.parallel.DistributedDataParallel(model, process_group=own)
elif kind == "ddp":
    model = nn.parallel.DistributedDataParallel(model)
elif kind == "hybrid of one":
    model = FullyShardedDataParallel(
        model, (own, whole), ShardingStrategy.HYBRID_SHARD, device_id=cpu, use_orig_params=True
    )
elif kind == "not sharded":
    model = FullyShardedDataParallel(
        model, None, ShardingStrategy.NO_SHARD, device_id=cpu, use_orig_params=True
    )
elif kind == "mesh of one":
    from torch.distributed.fsdp import fully_shard
    mesh = init_device_mesh("cpu", (WORLD, 1), mesh_dim_names=("replicate", "shard"))
    fully_shard(model, mesh=mesh["shard"])
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
data = torch.Generator().manual_seed(RANK)
for step in range(6):
    optimizer.zero_grad()
    model(torch.randn(16, 8, generator=data)).pow(2).mean().backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["ddp of one", "hybrid of one", pytest.param("mesh of one", marks=needs_fully_shard)]
)
def test_fires_on_groups_of_one_rank(tmp_path: Path, kind: str) -> None:
    assert fires("TC087", record_ranks(tmp_path, WRAPPED, kind)).subject.module == "Sequential"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "not sharded"])
def test_quiet_on_groups_of_all_ranks(tmp_path: Path, kind: str) -> None:
    assert quiet("TC087", record_ranks(tmp_path, WRAPPED, kind)) is Verdict.NOT_TRIGGERED
