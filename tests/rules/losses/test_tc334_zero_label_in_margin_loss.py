"""TC334: targets of 0 and 1 where -1 and 1 are asked for."""

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

RANKING = "margin_ranking_loss"
LOSSES = (RANKING, "cosine_embedding_loss", "hinge_embedding_loss", "soft_margin_loss")


def run(low: float, high: float, api: str = RANKING, count: int = 4, **args: Any) -> list[Event]:
    return loss_run(api, count, None, target=tensor((32,), min=low, max=high), **args)


BROKEN = run(0, 1)


def test_fires_once_at_the_first_loss(golden: Golden) -> None:
    finding = fires("TC334", BROKEN)
    assert (finding.first_step, finding.violations, finding.severity) == (0, 1, "warning")
    golden(finding)
    assert mentions(finding, "margin_ranking_loss", 0, 1, -1)


def test_the_first_batch_may_be_of_one_kind() -> None:
    trace = computing(RANKING, 1, target=tensor((4,), min=1, max=1))
    for _ in range(3):
        trace.begin_step().batch().zero_grad().forward()
        trace.call(f"torch.nn.functional.{RANKING}", args={"target": tensor((4,), min=0, max=1)})
        trace.backward().optimizer_step()
    assert fires("TC334", trace.build()).first_step == 1


@pytest.mark.parametrize(
    "events",
    [
        run(-1, 1),
        run(1, 1),
        run(0, 0),
        run(0.2, 1),
        run(0, 1, count=2),
        run(0, 1, reduction="none"),  # what is to be left out may be
        run(0, 1, "mse_loss"),
        run(-1, 1, count=1) + run(0, 1),  # ties are left out
        loss_run(RANKING, 4, None, target=tensor((32,))),
    ],
)
def test_quiet(events: list[Event]) -> None:
    assert quiet("TC334", events) in (Verdict.HELD, Verdict.NOT_TRIGGERED)


def loss_of(api: str, a: torch.Tensor, b: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    if api == "cosine_embedding_loss":
        return F.cosine_embedding_loss(a, b, target, margin=0.2)
    if api == RANKING:
        return F.margin_ranking_loss(a[:, 0], b[:, 0], target, margin=0.5)
    if api == "hinge_embedding_loss":
        return F.hinge_embedding_loss((a - b).norm(dim=1), target)
    return F.soft_margin_loss(a[:, 0], target.float())


@pytest.mark.parametrize("api", LOSSES)
@pytest.mark.parametrize("is_broken", [True, False])
def test_recorded_runs(tmp_path: Path, api: str, is_broken: bool) -> None:
    model = nn.Linear(8, 4)
    with recording(tmp_path / "run") as recorded:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(5):
            target = torch.arange(16) % 2
            optimizer.zero_grad()
            a, b = model(torch.randn(16, 8)), model(torch.randn(16, 8))
            loss_of(api, a, b, target if is_broken else 2 * target - 1).backward()
            optimizer.step()
    if is_broken:
        assert fires("TC334", recorded.events).subject.api == f"torch.nn.functional.{api}"
    else:
        assert quiet("TC334", recorded.events) is Verdict.HELD
