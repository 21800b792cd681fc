"""TC220: a rate that is reduced because the metric gets better."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.checking import fires, net, quiet
from tests.collect.recording import recording
from tests.golden import mentions
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict
from traincheck.schema.torch_api import Families

PLATEAU = "torch.optim.lr_scheduler.ReduceLROnPlateau.step"
LOSSES = [1.31, 1.12, 0.97, 0.81, 0.7]
SHARES = [41 / 120, 67 / 120, 83 / 120, 91 / 120, 97 / 120]


def run(
    metrics: Sequence[Any], reduced: Sequence[int] = (2, 3, 4), *, api: str = PLATEAU, load: int = 0
) -> list[Event]:
    """Updates, and a metric behind each; the rate falls upon those that are numbered."""
    trace, rate = net(lr=0.1), 0.1
    for number, metric in enumerate(metrics):
        trace.begin_step()
        trace.optimizers["opt0"].hyper["lr"] = rate
        if load and number == load:
            trace.load("torch.optim.lr_scheduler.ReduceLROnPlateau")
        trace.zero_grad().forward().backward().optimizer_step()
        fields = {"family": Families.SCHEDULER_STEP, "owner": "opt0", "where": "train.py:90"}
        trace.call(api, args={"0": metric}, **fields)
        rate *= 0.5 if number in reduced else 1
    trace.begin_step().optimizers["opt0"].hyper["lr"] = rate
    return trace.zero_grad().forward().backward().optimizer_step().build()


BROKEN = run(LOSSES)


def test_fires_on_a_loss_with_mode_max() -> None:
    finding = fires("TC220", BROKEN)
    assert (finding.first_step, finding.violations) == (2, 1)
    assert mentions(finding, 'mode="min"', 0.81)


def test_fires_on_an_accuracy_with_mode_min() -> None:
    for metrics in (SHARES, [100 * share for share in SHARES]):
        assert mentions(fires("TC220", run(metrics)), 'mode="max"')


def test_quiet_where_it_is_reduced_on_a_plateau() -> None:
    flat = [*LOSSES[:3], 0.969, 0.968, 0.75, 0.6]
    assert quiet("TC220", run(flat, reduced=(3, 4))) is Verdict.HELD
    worse = [*LOSSES[:3], 1.2, 1.4, 1.6, 1.7]
    assert quiet("TC220", run(worse, reduced=(4, 5, 6))) is Verdict.HELD


def test_quiet_on_a_loss_that_rises_and_a_share_that_falls() -> None:
    assert quiet("TC220", run(LOSSES[::-1])) is Verdict.HELD
    assert quiet("TC220", run(SHARES[::-1])) is Verdict.HELD


@pytest.mark.parametrize(
    ("metrics", "options"),
    [
        (LOSSES, {"api": "torch.optim.lr_scheduler.StepLR.step"}),
        (LOSSES, {"load": 1}),
        ([-value for value in LOSSES], {}),
        ([{"dtype": "float32", "shape": []}] * 5, {}),
    ],
)
def test_says_nothing_of_what_it_cannot_know(metrics: Any, options: Any) -> None:
    assert quiet("TC220", run(metrics, **options)) is Verdict.NOT_TRIGGERED


@pytest.mark.parametrize(("mode", "is_wrong"), [("max", True), ("min", False)])
def test_a_recorded_run(tmp_path: Path, mode: Any, is_wrong: bool) -> None:
    net = nn.Linear(3, 1)
    with recording(tmp_path / "run") as found:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode=mode, patience=0)
        for loss in (0.93184, 0.81276, 0.74359, 0.65123, 0.58391, 0.51127):
            optimizer.zero_grad()
            net(torch.ones(2, 3)).sum().backward()
            optimizer.step()
            scheduler.step(torch.tensor(loss))
        optimizer.zero_grad()
        net(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    if is_wrong:
        assert fires("TC220", found.events).severity == "warning"
    else:
        assert quiet("TC220", found.events) is Verdict.HELD
