"""TC915: a batch norm at several places."""

from __future__ import annotations

import pytest

from tests.builders import TraceBuilder
from tests.checking import fires, net, quiet
from traincheck.schema.findings import Verdict
from traincheck.schema.torch_api import Families


def called(
    times: int,
    *,
    forwards: int = 1,
    again: bool = False,
    training: bool = True,
    apart: bool = True,
    rows: tuple[int, ...] = (64,),
) -> list:
    """Steps with so many calls in a forward.

    again: computed once more in the backward. apart: other layers lie between.
    """
    trace = net()
    for _ in range(3):
        trace.begin_step().zero_grad()
        for _ in range(forwards):
            for number in range(times):
                if apart:
                    layer = {"family": Families.MODULE, "module": f"Net.conv{number}"}
                    trace.call("torch.nn.modules.conv.Conv1d.forward", training=training, **layer)
                normed(trace, training, rows[number % len(rows)])
            trace.forward()
        if again:
            normed(trace, training)
        trace.backward().optimizer_step()
    return trace.build()


def normed(trace: TraceBuilder, training: bool, rows: int = 64) -> None:
    trace.call("torch.nn.functional.batch_norm", args={"training": training}, module="Net.bn")
    trace.call(
        "torch.nn.modules.batchnorm.BatchNorm1d.forward",
        family=Families.MODULE,
        module="Net.bn",
        training=training,
        args={"0": {"dtype": "float32", "shape": [rows, 8], "device": "cpu"}},
    )


BROKEN = called(2)


def test_fires_on_two_calls_in_one_forward() -> None:
    finding = fires("TC915", BROKEN)
    assert (finding.subject.module, finding.first_step) == ("Net.bn", 1)


@pytest.mark.parametrize(
    "events",
    [
        called(1),
        called(1, forwards=2),
        called(1, again=True),
        called(2, training=False),
        called(2, apart=False),
        called(2, rows=(64, 8)),
    ],
    ids=["once", "several forwards", "checkpointing", "evaluation", "chunks", "something else"],
)
def test_quiet_on_others(events: list) -> None:
    assert quiet("TC915", events) in (Verdict.HELD, Verdict.NOT_TRIGGERED)
