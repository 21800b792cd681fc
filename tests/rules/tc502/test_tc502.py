"""TC502: ranks that are given the same batches."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.builders import MLP, TraceBuilder
from tests.checking import fires, quiet
from tests.rules.batches import leaf
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict

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
    assert "DistributedSampler" in finding.fix


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
