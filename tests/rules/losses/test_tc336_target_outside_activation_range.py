"""TC336: a last activation that cannot give what the loss asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.checking import fires, net, quiet
from tests.collect.recording import recording
from tests.golden import Golden, mentions
from tests.rules.loss_runs import tensor
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict


def run(
    low: float,
    high: float,
    api: str = "sigmoid",
    loss: str = "mse_loss",
    *,
    steps: int = 4,
    output: tuple[float, float] = (0.02, 0.9),
    shift: float = 0,
    **more: Any,
) -> list[Event]:
    trace, (least, most) = net(), output
    stats = {"min": least, "max": most, "nonfinite": 0, "zeros": 0.0}
    given = {**tensor((32, 8), **stats), "requires_grad": True, **more}
    seen = tensor((32, 8), min=least + shift, max=most + shift, nonfinite=0)
    for _ in range(steps):
        trace.begin_step().batch().zero_grad().forward()
        trace.call(f"torch.{api}", args={}, result=given)
        args = {"input": {**seen, "requires_grad": True}, "reduction": "mean"}
        args["target"] = tensor((32, 8), min=low, max=high)
        trace.call(f"torch.nn.functional.{loss}", args=args)
        trace.backward().optimizer_step()
    return trace.build()


BROKEN = run(-1, 1)


def test_fires_once_at_the_first_loss(golden: Golden) -> None:
    finding = fires("TC336", BROKEN)
    assert (finding.first_step, finding.violations, finding.severity) == (0, 1, "warning")
    golden(finding)
    assert mentions(finding, -1, 1, "mse_loss")


@pytest.mark.parametrize(
    "events",
    [
        run(-0.42, 2.82, "tanh", "l1_loss"),
        run(-2, 2, "relu", "smooth_l1_loss"),
        run(-2, 2, "relu", "huber_loss"),
        run(0, 3, "relu", "cross_entropy"),
        run(0, 3, "sigmoid", "cross_entropy"),
        run(0, 3, "tanh", "cross_entropy"),
    ],
)
def test_fires(events: list[Event]) -> None:
    assert fires("TC336", events).first_step == 0


@pytest.mark.parametrize(
    "events",
    [
        run(0, 1),
        run(-0.1, 1.2),  # outliers
        run(-1, 1, "tanh"),
        run(-0.05, 5, "relu"),  # noise
        run(0, 50, "softplus"),
        run(-1, 1, steps=2),
        run(-1, 1, shift=0.5),  # another tensor
        run(-1, 1, output=(0.5, 0.5)),
        run(-1, 1, "gelu"),
        run(-1, 1, loss="binary_cross_entropy"),  # TC330 tells
        run(0, 3, "softplus", "cross_entropy"),
        run(0, 3, "tanh", "cross_entropy", shift=0.5),  # bounds that are scaled
        run(-1, 1, requires_grad=False),
    ],
)
def test_quiet(events: list[Event]) -> None:
    assert quiet("TC336", events) in (Verdict.HELD, Verdict.NOT_TRIGGERED)


@pytest.mark.parametrize(
    ("last", "is_wrong"), [(nn.Sigmoid(), True), (nn.Tanh(), False), (nn.Identity(), False)]
)
def test_recorded_runs(tmp_path: Path, last: nn.Module, is_wrong: bool) -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 8), last)
    with recording(tmp_path / "run") as recorded:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            images = torch.rand(16, 8) * 2 - 1
            optimizer.zero_grad()
            F.mse_loss(model(images), images).backward()
            optimizer.step()
    if is_wrong:
        assert fires("TC336", recorded.events).subject.api == "torch.nn.functional.mse_loss"
    else:
        assert quiet("TC336", recorded.events) in (Verdict.HELD, Verdict.NOT_TRIGGERED)


@pytest.mark.parametrize("is_wrong", [True, False])
def test_recorded_logits(tmp_path: Path, is_wrong: bool, golden: Golden) -> None:
    first, last = nn.Linear(8, 16), nn.Linear(16, 4)
    with recording(tmp_path / "run") as recorded:
        optimizer = torch.optim.SGD([*first.parameters(), *last.parameters()], lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            logits = last(F.relu(first(torch.randn(16, 8))))
            logits = F.relu(logits) if is_wrong else logits
            F.cross_entropy(logits, torch.randint(4, (16,))).backward()
            optimizer.step()
    if is_wrong:
        golden(fires("TC336", recorded.events), numbers=False)
    else:
        assert quiet("TC336", recorded.events) in (Verdict.HELD, Verdict.NOT_TRIGGERED)
