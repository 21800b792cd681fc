"""TC310: softmax before cross_entropy."""

from __future__ import annotations

from typing import Any

import pytest

from tests.checking import fires, net, quiet
from tests.golden import Golden
from tests.rules.loss_runs import loss_run, tensor
from traincheck.schema.findings import Verdict

LABELS = tensor((64,), "int64", min=0, max=9)
SOFTMAX = tensor((64, 10), min=0.01, max=0.7, row_sum_min=0.9999, row_sum_max=1.0001)

BROKEN = loss_run("cross_entropy", input=SOFTMAX, target=LABELS)


def test_fires_at_the_first_loss(golden: Golden) -> None:
    finding = fires("TC310", BROKEN)
    assert (finding.first_step, finding.last_step) == (0, 1)
    golden(finding)
    assert finding.subject.api == "torch.nn.functional.cross_entropy"


def test_fires_in_half_precision() -> None:
    half = tensor((8, 10), "bfloat16", min=0.0, max=0.9, row_sum_min=0.99, row_sum_max=1.01)
    assert fires("TC310", loss_run("cross_entropy", input=half, target=LABELS))


@pytest.mark.parametrize(
    "logits",
    [
        tensor((64, 10), min=-1.2, max=0.7, row_sum_min=-3, row_sum_max=2),
        tensor((64, 10), min=0.0, max=0.7, row_sum_min=0.4, row_sum_max=2.1),
        tensor((64, 10), min=-5.0, max=-0.1, row_sum_min=-30, row_sum_max=-20),  # log_softmax
        tensor((64, 10), min=0.0, max=0.0, row_sum_min=0, row_sum_max=0),  # a zero head
        tensor((64, 10)),  # no numbers were taken
        tensor((64, 1), min=1.0, max=1.0, row_sum_min=1, row_sum_max=1),
        tensor((64, 10), nonfinite=3, min=0.0, max=1.0, row_sum_min=1, row_sum_max=1),
    ],
)
def test_quiet_on_logits(logits: dict[str, Any]) -> None:
    events = loss_run("cross_entropy", input=logits, target=LABELS)
    assert quiet("TC310", events) is Verdict.HELD


def test_quiet_without_gradients() -> None:
    events = (
        net()
        .steps(2)
        .call("torch.nn.functional.cross_entropy", args={"input": SOFTMAX}, grad_enabled=False)
    )
    assert quiet("TC310", events.build()) is Verdict.HELD
