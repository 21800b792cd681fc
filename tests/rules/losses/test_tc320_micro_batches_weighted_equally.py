"""TC320: micro-batches of different length that count the same."""

from __future__ import annotations

from typing import Any

import pytest

from tests.checking import fires, net, quiet
from tests.golden import Golden, mentions
from tests.rules.loss_runs import tensor
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict

LOSS = "torch.nn.functional.cross_entropy"


def accumulated(*valid: int, steps: int = 2, losses: int = 1, **args: Any) -> list[Event]:
    """Steps over micro-batches of 100 labels with so many valid ones."""
    trace = net()
    for _ in range(steps):
        trace.begin_step().zero_grad()
        for count in valid:
            target = tensor((100,), "int64", min=-100, max=9, ignored=1 - count / 100)
            given = {"input": tensor((100, 10)), "target": target, "reduction": "mean", **args}
            trace.batch()
            for _ in range(losses):
                trace.call(LOSS, args=given)
            trace.backward()
        trace.optimizer_step()
    return trace.build()


BROKEN = accumulated(10, 80)


def test_fires_at_the_first_step(golden: Golden) -> None:
    finding = fires("TC320", BROKEN)
    assert (finding.severity, finding.first_step) == ("warning", 0)
    golden(finding)
    assert mentions(finding, 10, 80)


@pytest.mark.parametrize("valid", [(50, 80), (70, 70, 71), (90, 60)])
def test_quiet_on_about_the_same_number(valid: tuple[int, ...]) -> None:
    assert quiet("TC320", accumulated(*valid)) is Verdict.HELD


@pytest.mark.parametrize(
    "events",
    [
        accumulated(10, 80, reduction="sum"),
        accumulated(10),
        accumulated(10, 80, ignore_index=0),
        accumulated(10, 80, losses=2),
    ],
)
def test_says_nothing_without_means_to_add(events: list[Event]) -> None:
    assert quiet("TC320", events) is Verdict.NOT_TRIGGERED
