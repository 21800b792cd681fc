"""Tensors whose memory is given back for a while, as sharding and offloading do it.

What reads it ends the process: each of these would not fail but take pytest with it, so programs
run in a process of their own.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.checking import report_of
from tests.collect.recording import read_folder, recording
from traincheck.collect.stats.tensor_stats import is_countable
from traincheck.collect.tensors.fingerprint import components, fingerprint, is_at_hand
from traincheck.collect.tensors.reading import has_memory

COLLECT = "import sys; from traincheck.cli.main import collect_main; sys.exit(collect_main())"

OFFLOADED = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2))
weight, head = model[0].weight, [p for p in model[2].parameters()]
first = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
second = torch.optim.SGD(head, lr=0.01)
for step in range(6):
    first.zero_grad()
    loss = model(torch.randn(16, 8)).square().mean()
    loss.backward()
    first.step()
    storage = weight.untyped_storage()
    kept, size = weight.detach().clone(), storage.nbytes()
    storage.resize_(0)
    second.step()
    second.zero_grad()
    storage.resize_(size)
    weight.data.copy_(kept)
    print(loss.item())
"""

SHARDED = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
try:
    from torch.distributed.fsdp import fully_shard
except ImportError:
    from torch.distributed._composable.fsdp import fully_shard
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2))
fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if "first" in sys.argv:
    with torch.no_grad():
        model(torch.randn(16, 8))
for epoch in range(3):
    for step in range(4):
        optimizer.zero_grad()
        loss = model(torch.randn(16, 8)).square().mean()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        model(torch.randn(16, 8))
    print(loss.item())
dist.destroy_process_group()
"""


def run(folder: Path, text: str, *args: str) -> None:
    """Run a program with and without recording."""
    script = folder / "train.py"
    script.write_text(text)
    collect = [sys.executable, "-c", COLLECT, "--quiet", "-o", str(folder / "run"), "-p"]
    plain, recorded = (
        subprocess.run(
            [*command, str(script), *dashes, str(folder / name), *args],
            capture_output=True,
            text=True,
            check=False,
        )
        for name, command, dashes in (("a", [sys.executable], ()), ("b", collect, ("--",)))
    )
    if "gloo" in text and plain.returncode:
        pytest.skip(f"fully_shard does not work on this machine: {plain.stderr[-200:]}")
    assert (recorded.returncode, recorded.stdout) == (plain.returncode, plain.stdout)
    assert plain.returncode == 0, plain.stderr


def test_memory_that_is_given_back() -> None:
    whole, freed = nn.Parameter(torch.ones(4, 3)), nn.Parameter(torch.ones(4, 3))
    piece = freed.detach()[1:]
    freed.untyped_storage().resize_(0)
    assert has_memory(whole)
    assert has_memory(torch.empty(0, 3))
    for tensor in (freed, piece):
        assert not has_memory(tensor)
        assert fingerprint(tensor) is None
        assert components(tensor) is None
        assert not is_at_hand(tensor)
        assert not is_countable(tensor)


def test_a_parameter_that_is_offloaded_while_another_optimizer_steps(tmp_path: Path) -> None:
    run(tmp_path, OFFLOADED)
    events = read_folder(tmp_path / "run")
    changed = [e for e in events if e.kind == "state" and e.name == "Sequential.0.weight"]
    assert {event.step for event in changed if event.change == "content"} >= {1, 2, 3, 4, 5}


@pytest.mark.parametrize("when", ["later", "first"])
def test_a_sharded_model_that_is_evaluated(tmp_path: Path, when: str) -> None:
    """Its parameters stay gathered after a forward without a backward: others than before."""
    run(tmp_path, SHARDED, when)
    report = report_of(read_folder(tmp_path / "run"))
    assert [(found.check, found.message) for found in report.findings] == []
    assert any(e.kind == "optimizer" for e in read_folder(tmp_path / "run"))


def test_a_frozen_parameter_that_is_offloaded_has_not_changed(tmp_path: Path) -> None:
    """Large enough that a look reads parts of it only."""
    frozen, trained = nn.Linear(64, 64).requires_grad_(False), nn.Linear(64, 2)
    with recording(tmp_path / "run") as run:
        model = nn.Sequential(frozen, nn.ReLU(), trained)
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(8, 64)).square().mean().backward()
            storage = frozen.weight.untyped_storage()
            kept, size = frozen.weight.detach().clone(), storage.nbytes()
            storage.resize_(0)
            optimizer.step()
            storage.resize_(size)
            frozen.weight.data.copy_(kept)
    changes = {change for _, change in run.changes("parameter", "Sequential.0.weight")}
    assert changes <= {"new", "unknown"}
