"""TC330: binary cross entropy of targets that are no probabilities."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.checking import fires, quiet
from tests.collect.recording import recording
from tests.golden import Golden, mentions
from tests.rules.loss_runs import computing, loss_run, tensor
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict

LOGITS, PLAIN = "binary_cross_entropy_with_logits", "binary_cross_entropy"


def run(low: float, high: float, api: str = LOGITS, count: int = 3, **args: Any) -> list[Event]:
    given = {"input": tensor((64, 1), min=0.1, max=0.9), **args}
    return loss_run(api, count, None, target=tensor((64, 1), min=low, max=high), **given)


BROKEN = run(0, 255)


def test_fires_once_at_the_first_loss(golden: Golden) -> None:
    finding = fires("TC330", BROKEN)
    assert (finding.first_step, finding.violations, finding.severity) == (0, 1, "error")
    assert finding.subject.api == f"torch.nn.functional.{LOGITS}"
    golden(finding)
    assert mentions(finding, 0, 255, "binary_cross_entropy_with_logits", 1)


@pytest.mark.parametrize("api", [LOGITS, PLAIN])
@pytest.mark.parametrize(("low", "high"), [(0, 255), (1, 2), (-1, 1), (-0.42, 2.82), (-8, 5)])
def test_tells_what_the_targets_are(api: str, low: float, high: float, golden: Golden) -> None:
    assert mentions(golden(fires("TC330", run(low, high, api))), low, high)


def test_tells_the_extremes_of_both_losses(golden: Golden) -> None:
    trace = computing(LOGITS, 1, target=tensor((4, 1), min=1, max=2))
    trace.begin_step().batch().zero_grad().forward()
    trace.call(f"torch.nn.functional.{LOGITS}", args={"target": tensor((4, 1), min=2, max=2)})
    finding = fires("TC330", trace.backward().optimizer_step().build())
    golden(finding)
    assert mentions(finding, 1, 2)


def test_fires_where_weights_are_no_mask() -> None:
    assert fires("TC330", run(0, 255, weight=tensor((64, 1), min=0.5, max=2)))


@pytest.mark.parametrize(
    "events",
    [
        run(0, 1),
        run(0.7, 1.2),  # of a discriminator
        run(-0.05, 1.05),
        run(0, 1.0000001),
        run(0, 255, count=1),
        run(-1, 1, reduction="none"),  # the unknown are left out afterwards
        run(-1, 1, reduce=False),
        run(-1, 1, weight=tensor((64, 1), min=0, max=1)),
        run(-1, 1, weight=tensor((64, 1))),  # its numbers are not known
        run(-3, 3, "mse_loss"),
        loss_run(LOGITS, 3, None, input=tensor((64, 1)), target=tensor((64, 1))),
        loss_run(LOGITS, 3, None, target=tensor((64, 1), min=0, max=255, nonfinite=1)),
    ],
)
def test_quiet(events: list[Event]) -> None:
    assert quiet("TC330", events) in (Verdict.HELD, Verdict.NOT_TRIGGERED)


class Segment(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x)


@pytest.mark.parametrize("is_module", [True, False])
@pytest.mark.parametrize(("scale", "is_wrong"), [(255, True), (1, False)])
def test_recorded_runs(
    tmp_path: Path, scale: float, is_module: bool, is_wrong: bool, golden: Golden
) -> None:
    images = torch.rand(8, 1, 8, 8)
    masks = (images > 0.5).float() * scale
    model = Segment()
    with recording(tmp_path / "run") as run:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            if is_module:
                nn.BCEWithLogitsLoss()(model(images), masks).backward()
            else:
                F.binary_cross_entropy_with_logits(model(images), masks).backward()
            optimizer.step()
        with torch.no_grad():
            nn.BCEWithLogitsLoss()(model(images), masks * 9)
            nn.BCEWithLogitsLoss()(model(images), masks * 9)
        nn.BCEWithLogitsLoss()(model(images).detach(), masks * 9)  # only to be printed
        nn.BCEWithLogitsLoss()(model(images).detach(), masks * 9)
    if is_wrong:
        finding = fires("TC330", run.events)
        assert finding.first_step == 0
        golden(finding, numbers=False)
        assert mentions(finding, 0, 255)
    else:
        assert quiet("TC330", run.events) is Verdict.HELD
