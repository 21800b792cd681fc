"""Record a real program of two ranks under torchrun."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import harness
from traincheck.schema.events import Event
from traincheck.store.reader import TraceReader

needs_dtensors = pytest.mark.skipif(
    torch.__version__ < (2, 5), reason="DTensors of torch 2.4 hang in every other run over gloo"
)
needs_fully_shard = pytest.mark.skipif(
    torch.__version__ < (2, 6), reason="torch before 2.6 has fully_shard for GPUs only"
)
needs_replicas = pytest.mark.skipif(
    torch.__version__ < (2, 8), reason="fully_shard of torch 2.7 averages replicas, gloo cannot"
)

HEAD = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)
dist.init_process_group("gloo")
RANK, WORLD = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
"""


def record_ranks(folder: Path, text: str, *arguments: str) -> list[Event]:
    """The events of two ranks that run this program.

    Args:
        folder: for the script and the trace.
        text: of the program, after `HEAD` and before the end of the process group.
        arguments: of the script.
    """
    script = folder / "train.py"
    script.write_text(f"{HEAD}{text}\ndist.destroy_process_group()\n", encoding="utf-8")
    torchrun = [harness.command("torchrun"), "--standalone", "--nproc-per-node", "2"]
    harness.collect([*torchrun, script, *arguments], folder / "trace", rules=True).expect()
    return list(TraceReader(folder / "trace").events())
