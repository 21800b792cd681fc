"""TC311: sigmoid before a loss that applies it again."""

from __future__ import annotations

from typing import Any

import pytest

from tests.checking import fires, quiet
from tests.rules.losses import loss_run, tensor
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict

LOSS = "binary_cross_entropy_with_logits"
INSIDE = tensor((64, 1), min=0.2, max=0.8)


def run(logits: dict[str, Any], count: int = 2, before: str | None = None) -> list[Event]:
    return loss_run(LOSS, count, before, input=logits, target=tensor((64, 1)))


BROKEN = run(INSIDE, before="torch.sigmoid")


def test_fires_after_a_sigmoid_of_that_size() -> None:
    finding = fires("TC311", BROKEN)
    assert (finding.first_step, finding.last_step) == (0, 1)
    assert "sigmoid" in finding.message


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
