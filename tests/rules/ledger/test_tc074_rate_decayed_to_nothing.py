"""TC074: a rate that the program reduces to almost nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.checking import fires, net, quiet
from tests.golden import mentions
from tests.rules.ledger.programs import model, recorded, train
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict


def decayed(rate: Callable[[int], float], *, steps: int = 60) -> list[Event]:
    """Steps whose rate is set before each."""
    trace = net(lr=rate(0))
    for step in range(steps):
        trace.optimizers["opt0"].hyper["lr"] = rate(step)
        trace.steps(1)
    return trace.build()


BROKEN = decayed(lambda step: 0.1 * 0.5**step)


def test_fires_on_a_decay_that_never_ends() -> None:
    finding = fires("TC074", BROKEN)
    assert (finding.subject.variable, finding.violations) == ("opt0", 1)
    assert finding.first_step == 20  # the first rate below a millionth of the first
    assert mentions(finding, "60 updates")


@pytest.mark.parametrize(
    "rate",
    [
        lambda step: 0.1 * (1 - step / 60),
        lambda step: 0.1 if step < 50 else 1e-9,
        lambda step: 1e-9 if step < 30 else 0.1,
    ],
    ids=["linear", "last updates", "warm-up"],
)
def test_quiet_on_healthy_schedules(rate: Callable[[int], float]) -> None:
    assert quiet("TC074", decayed(rate)) is Verdict.HELD


def compounding(*, is_wrong: bool) -> None:
    trained = model()
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)

    def before(step: int) -> None:
        for group in optimizer.param_groups:
            start = group["lr"] if is_wrong else 0.1
            group["lr"] = start * (1 - step / 80)

    train(trained, optimizer, 76, before=before)


def test_fires_on_a_factor_that_compounds(tmp_path: Path) -> None:
    events = recorded(tmp_path, lambda: compounding(is_wrong=True))
    assert mentions(fires("TC074", events), "0.1")


def test_quiet_on_a_factor_of_the_first_rate(tmp_path: Path) -> None:
    events = recorded(tmp_path, lambda: compounding(is_wrong=False))
    assert quiet("TC074", events) is Verdict.HELD
