"""TC311: sigmoid before a loss that applies it again."""

from __future__ import annotations

from typing import Any

import pytest

from tests.checking import fires, net, quiet
from tests.golden import Golden, mentions
from tests.rules.loss_runs import loss_run, tensor
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict

LOSS = "binary_cross_entropy_with_logits"
INSIDE = tensor((64, 1), min=0.2, max=0.8)


def run(logits: dict[str, Any], count: int = 2, before: str | None = None) -> list[Event]:
    return loss_run(LOSS, count, before, input=logits, target=tensor((64, 1)))


BROKEN = run(INSIDE, before="torch.sigmoid")


def test_fires_after_a_sigmoid_of_that_size(golden: Golden) -> None:
    finding = fires("TC311", BROKEN)
    assert (finding.first_step, finding.last_step) == (0, 1)
    golden(finding)


@pytest.mark.parametrize(
    ("logits", "count", "before"),
    [
        (tensor((64, 1), min=-0.2, max=0.8), 12, "torch.sigmoid"),  # of a gate
        (tensor((64, 1), min=0.2, max=1.8), 12, None),
        (tensor((4, 1), min=0.2, max=0.8), 3, "torch.sigmoid"),
        (INSIDE, 12, None),  # of a discriminator
        (tensor((64, 1), min=0.0, max=0.0), 12, "torch.sigmoid"),  # a zero head
        (tensor((64, 1)), 12, "torch.sigmoid"),
    ],
)
def test_quiet_on_logits(logits: dict[str, Any], count: int, before: str | None) -> None:
    if before and logits["shape"] == [4, 1]:
        count = 3  # twelve elements in all
    assert quiet("TC311", run(logits, count, before)) is Verdict.HELD


def gates(*extremes: tuple[float, float], shape: tuple[int, int] = (64, 1)) -> list[Event]:
    """Steps with sigmoids of one size that give these extremes, one after the other."""
    trace = net()
    for _ in range(4):
        trace.begin_step().batch().zero_grad().forward()
        for low, high in extremes:
            trace.call("torch.sigmoid", args={}, result=tensor(shape, min=low, max=high))
        trace.backward().optimizer_step()
    return trace.build()


def test_fires_on_a_sigmoid_of_a_sigmoid(golden: Golden) -> None:
    finding = fires("TC311", gates((0.1, 0.9), (0.52498, 0.71095)))
    assert (finding.first_step, finding.violations) == (0, 1)
    golden(finding)
    assert mentions(finding, 0.525, 0.711)


def test_quiet_on_several_sigmoids() -> None:
    assert quiet("TC311", gates((0.1, 0.9), (0.2, 0.8), (0.1, 0.9))) is Verdict.HELD
    assert quiet("TC311", gates((0.1, 0.9))) is Verdict.HELD
