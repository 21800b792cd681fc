"""TC502: ranks that are given the same batches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import harness
from tests.builders import MLP, TraceBuilder
from tests.checking import fires, quiet
from tests.golden import Golden, mentions
from tests.ranks import RankBuilder, two_ranks
from tests.rules.batches import leaf
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict
from traincheck.schema.torch_api import DDP_FORWARD, Families

DDP = "torch.nn.parallel.DistributedDataParallel.__init__"


def ranks(*contents: Sequence[str], wraps: bool = True, stage: str = "train") -> list[Event]:
    """Ranks, step by step; contents: of the batches of each."""
    traces = [
        TraceBuilder(rank=r).process().model("Net", MLP).optimizer() for r in range(len(contents))
    ]
    for trace in traces:
        if wraps:
            trace.call(DDP)
    events = [event for trace in traces for event in trace.take()]
    for step in range(len(contents[0])):
        for rank, trace in enumerate(traces):
            batch = {"leaves": {"batch": leaf(contents[rank][step])}, "index": step}
            trace.begin_step()
            if stage == "train":
                trace.batch(**batch)
            trace.zero_grad().forward().backward().optimizer_step()
            if stage == "eval":
                trace.batch().train(False).forward(grad=False).batch("loader1", **batch).train()
            trace.end_step()
            events += trace.take()
    return events


BROKEN = ranks("abc", "abc")


def test_fires_at_the_first_batch() -> None:
    finding = fires("TC502", BROKEN)
    assert (finding.first_step, finding.violations) == (0, 1)
    assert finding.variables == ("loader0",)
    assert mentions(finding, "DistributedSampler")


@pytest.mark.parametrize(
    "contents",
    [
        ("abc", "def"),
        ("aaa", "aaa"),  # one batch again and again
        ("abc", "abc", "def", "def"),  # shared in groups
        ("abcd", "aefg"),  # by chance
    ],
)
def test_quiet_when_ranks_share_the_data_out(contents: tuple[str, ...]) -> None:
    assert quiet("TC502", ranks(*contents)) is Verdict.HELD


def test_quiet_on_evaluation_without_ddp_and_on_one_rank() -> None:
    assert quiet("TC502", ranks("abc", "abc", stage="eval")) is Verdict.NOT_TRIGGERED
    assert quiet("TC502", ranks("abc", "abc", wraps=False)) is Verdict.NOT_TRIGGERED
    assert quiet("TC502", ranks("abc")) is Verdict.NOT_TRIGGERED


def drawn(
    *contents: str,
    wrap: bool = True,
    training: bool = True,
    loads: bool = False,
    shape: tuple[int, ...] = (4, 10),
) -> list[Event]:
    """Two ranks that give their models what they have drawn themselves."""

    def play(rank: RankBuilder) -> None:
        for content in contents[rank.rank]:
            rank.begin_step().zero_grad()
            if loads:
                rank.batch(leaves={"batch": leaf(f"{content}{rank.rank}")})
            given = {"0": leaf(content, shape)}
            fields = {"family": Families.MODULE, "module": "Net", "root": True, "args": given}
            rank.call(DDP_FORWARD, training=training, grad_enabled=training, **fields)
            rank.backward().optimizer_step()

    return two_ranks(play, wrap=wrap)


def test_fires_on_batches_that_each_rank_draws_with_the_same_seed(golden: Golden) -> None:
    finding = fires("TC502", drawn("abc", "abc"))
    assert (finding.first_step, finding.violations) == (0, 1)
    assert finding.variables == ("Net",)
    golden(finding)
    assert not mentions(finding.likely_cause, "DistributedSampler")


@pytest.mark.parametrize("contents", [("abc", "def"), ("aaa", "aaa"), ("abcd", "aefg")])
def test_quiet_on_draws_of_their_own_and_on_one_batch(contents: tuple[str, str]) -> None:
    assert quiet("TC502", drawn(*contents)) is Verdict.HELD


def test_quiet_on_inputs_that_say_little() -> None:
    assert quiet("TC502", drawn("abc", "abc", training=False)) is Verdict.NOT_TRIGGERED
    assert quiet("TC502", drawn("abc", "abc", wrap=False)) is Verdict.NOT_TRIGGERED
    assert quiet("TC502", drawn("abc", "abc", shape=(4, 2))) is Verdict.NOT_TRIGGERED  # a time step
    assert quiet("TC502", drawn("abc", "abc", loads=True)) is Verdict.HELD  # noise of a generator


SCRIPT = """
import os
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank() * int(os.environ["APART"]))
rows = torch.randn(200, 8)
model = nn.parallel.DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    optimizer.zero_grad()
    model(rows[torch.randint(200, (16,))]).pow(2).mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("apart", [0, 1])
def test_ranks_that_draw_their_batches(tmp_path: Path, apart: int) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    torchrun = [harness.command("torchrun"), "--standalone", "--nproc-per-node", "2"]
    out = tmp_path / "t"
    command = [harness.command("traincheck-collect"), "-o", out, "--", *torchrun, script]
    harness.run(command, cwd=tmp_path, env={"APART": apart}, out=out).expect()
    report = harness.check(out)
    told = [finding["code"] for finding in report["findings"] if finding["severity"] == "error"]
    assert told == ([] if apart else ["TC502"])
