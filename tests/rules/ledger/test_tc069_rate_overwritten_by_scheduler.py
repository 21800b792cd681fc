"""TC069: rates that a scheduler replaces before an update uses them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from tests.checking import fires, net, quiet
from tests.golden import mentions
from tests.rules.ledger.programs import model, recorded, set_rate, train
from traincheck.schema.findings import Verdict
from traincheck.schema.observations.loads import OverwrittenRates

WRITE = OverwrittenRates(
    "opt0",
    "torch.optim.lr_scheduler.LambdaLR",
    (0.05,),
    (0.1,),
    (0.09,),
    "train.py:40",
)
BROKEN = net()
for _ in range(4):
    BROKEN = BROKEN.steps(1).mark(WRITE.text, **WRITE.data()).scheduler_step()
BROKEN = BROKEN.build()  # type: ignore[assignment]


def test_fires_at_the_third_time() -> None:
    finding = fires("TC069", BROKEN)  # type: ignore[arg-type]
    assert (finding.subject.variable, finding.violations) == ("opt0", 1)
    assert mentions(finding, "0.05", "0.09")


def scheduled(
    make: Callable[[Any], Any], *, write_first: bool = False, writes: bool = True
) -> None:
    trained = model()
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    schedule = make(optimizer)

    def write(step: int) -> None:
        if writes:
            set_rate(optimizer.param_groups, 0.03 / (1 + step))

    def after(step: int) -> None:
        if not write_first:
            write(step)
        schedule.step()

    before = write if write_first else (lambda _: None)
    train(trained, optimizer, 8, before=before, after=after)


def decay(optimizer: Any) -> Any:
    return lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)


def test_fires_on_a_real_program(tmp_path: Path) -> None:
    assert mentions(fires("TC069", recorded(tmp_path, lambda: scheduled(decay))), "LambdaLR")


def test_quiet_on_a_warm_up_by_hand(tmp_path: Path) -> None:
    """Each rate that is written is used by an update."""
    events = recorded(tmp_path, lambda: scheduled(decay, write_first=True))
    assert quiet("TC069", events) is Verdict.HELD


@pytest.mark.parametrize(
    "make",
    [
        decay,
        lambda o: lr_scheduler.OneCycleLR(o, 0.2, total_steps=20),
        lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
        lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=2),
        lambda o: lr_scheduler.SequentialLR(
            o, [lr_scheduler.LinearLR(o), decay(o)], milestones=[3]
        ),
    ],
)
def test_quiet_on_schedules_alone(tmp_path: Path, make: Callable[[Any], Any]) -> None:
    events = recorded(tmp_path, lambda: scheduled(make, writes=False))
    assert quiet("TC069", events) is Verdict.HELD


def test_quiet_on_a_scheduler_that_multiplies(tmp_path: Path) -> None:
    events = recorded(tmp_path, lambda: scheduled(lambda o: lr_scheduler.ExponentialLR(o, 0.9)))
    assert quiet("TC069", events) is Verdict.HELD
