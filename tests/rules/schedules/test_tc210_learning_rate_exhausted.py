"""TC210: training goes on with a learning rate of zero."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from tests.builders import TraceBuilder
from tests.checking import fires, net, quiet
from tests.collect.recording import recording
from tests.golden import Golden, mentions
from tests.rules.window import schedule, scheduler_made
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict
from traincheck.schema.torch_api import Families


def scheduled(rate: float) -> TraceBuilder:
    """A model whose optimizer was built with another rate than its schedule begins with."""
    trace = net(lr=0.1)
    trace.optimizers["opt0"].hyper["lr"] = rate
    return trace


def loop(rates: Sequence[float], *, times: int = 1) -> list[Event]:
    """After each step the scheduler sets the next rate."""
    trace = scheduled(rates[0])
    for rate in rates[1:]:
        trace.begin_step().zero_grad().forward().backward().optimizer_step()
        schedule(trace, lr=rate, times=times)
    return trace.build()


BROKEN = loop([0.3, 0.2, 0.1, 0, 0, 0, 0, 0])


def test_fires_where_the_schedule_has_ended() -> None:
    finding = fires("TC210", BROKEN)
    assert finding.first_step == 3
    assert finding.subject.api == Families.SCHEDULER_STEP
    assert mentions(finding, "train.py:90")


def test_fires_where_it_is_stepped_too_often(golden: Golden) -> None:
    finding = fires("TC210", loop([0.3, 0.2, 0.1, 0, 0, 0, 0, 0], times=2))
    assert finding.first_step <= 1
    golden(finding)
    assert mentions(finding, 2, "opt0")


def test_quiet_on_warm_up_from_zero() -> None:
    assert quiet("TC210", loop([0.0, 0.0, 0.0, 0.0, 0.1, 0.2])) is Verdict.NOT_TRIGGERED


def test_fires_where_a_schedule_never_leaves_zero(golden: Golden) -> None:
    finding = fires("TC210", loop([0.0] * 40))
    assert (finding.first_step, finding.violations) == (0, 1)
    assert mentions(finding, "train.py:90")
    golden(finding)
    assert mentions(finding, "opt0 (Adam)", 10)


def test_a_schedule_cannot_multiply_zero(golden: Golden) -> None:
    trace = net(lr=0.0)
    for _ in range(40):
        trace.begin_step().zero_grad().forward().backward().optimizer_step()
        schedule(trace, lr=0.0)
    finding = fires("TC210", trace.build())
    golden(finding)


def test_quiet_where_a_long_first_epoch_has_a_rate_of_zero() -> None:
    trace = net(lr=0.0)
    for _ in range(40):
        trace.begin_step().zero_grad().forward().backward().optimizer_step()
    schedule(trace, lr=0.1)
    assert quiet("TC210", trace.steps(4).build()) is Verdict.NOT_TRIGGERED


def test_quiet_on_a_last_step_at_zero() -> None:
    assert quiet("TC210", loop([0.3, 0.2, 0.1, 0, 0])) is Verdict.HELD


def test_quiet_on_a_schedule_that_lasts() -> None:
    rates = [0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2]
    assert quiet("TC210", loop(rates, times=2)) is Verdict.NOT_TRIGGERED


def unscheduled(rate: float, steps: int) -> list[Event]:
    return net(lr=rate).steps(steps).build()


def test_fires_on_a_rate_that_is_zero_throughout(golden: Golden) -> None:
    finding = fires("TC210", unscheduled(0.0, 12))
    assert finding.first_step == 0
    assert mentions(finding, "opt0")
    golden(finding)


def test_quiet_on_a_short_run_or_another_rate_or_a_scheduler() -> None:
    assert quiet("TC210", unscheduled(0.0, 8)) is Verdict.NOT_TRIGGERED
    assert quiet("TC210", unscheduled(0.1, 12)) is Verdict.NOT_TRIGGERED
    assert quiet("TC210", loop([0.0] * 10)) is Verdict.NOT_TRIGGERED
    assert quiet("TC210", net(lr=0.0).steps(12, omit={"backward"}).build()) is Verdict.NOT_TRIGGERED


def falling(factor: float, steps: int, *, cls: str = "StepLR", warm: int = 0) -> list[Event]:
    """A rate that is multiplied by ``factor`` after each update, from some on."""
    trace = net(lr=0.1)
    for step in range(steps):
        trace.begin_step().zero_grad().forward().backward().optimizer_step()
        schedule(trace, lr=0.1 * factor ** max(0, step + 1 - warm), cls=cls)
    return trace.build()


def test_fires_where_next_to_nothing_is_left(golden: Golden) -> None:
    finding = fires("TC210", falling(0.5, 60))
    assert (finding.first_step, finding.violations) == (20, 1)
    golden(finding)
    assert mentions(finding, 0.05, "train.py:90")


def at(rates: Sequence[float], *, steps: Sequence[int] = ()) -> list[Event]:
    """A rate for each update; the scheduler steps before some."""
    trace = scheduled(rates[0])
    for step, rate in enumerate(rates):
        trace.begin_step().zero_grad()
        if step in steps:
            schedule(trace)
        trace.optimizers["opt0"].hyper["lr"] = rate
        trace.forward().backward().optimizer_step()
    return trace.build()


def test_quiet_where_a_rate_is_small_for_a_reason() -> None:
    for events in (
        falling(0.5, 38),  # ends soon
        falling(0.5, 400, warm=361),  # the tail of a schedule
        falling(0.5, 60, cls="ReduceLROnPlateau"),
        falling(0.1, 30, warm=23),  # a hundred-millionth, of which six are left
        falling(0.8, 60),
        at([10.0**k for k in range(-7, 2)] + [1e-6] * 60, steps=range(20, 60)),  # a rate is found
        at([0.1, 1e-4, *[1e-9] * 30, 0.1], steps=(1, 2)),  # by epoch, and turns
    ):
        assert quiet("TC210", events) in (Verdict.HELD, Verdict.NOT_TRIGGERED)


def test_quiet_on_a_small_rate_beside_another_optimizer() -> None:
    trace = net(lr=0.1).optimizer(lr=0.1)
    for step in range(60):
        trace.begin_step().zero_grad().forward().backward()
        trace.optimizer_step("opt0").optimizer_step("opt1")
        schedule(trace, lr=0.1 * 0.5**step)
    assert quiet("TC210", trace.build()) in (Verdict.HELD, Verdict.NOT_TRIGGERED)


def late(first: int, *, other: bool = False) -> list[Event]:
    """A rate of zero until the first step of the scheduler."""
    trace = scheduler_made(scheduled(0.0))
    if other:
        trace.optimizer(lr=0.1)
    for _ in range(first):
        trace.begin_step().zero_grad().forward().backward().optimizer_step()
        if other:
            trace.optimizer_step("opt1")
    schedule(trace, lr=0.1)
    return trace.steps(4).build()


def test_fires_where_a_warm_up_waits_at_zero(golden: Golden) -> None:
    finding = fires("TC210", late(20))
    assert (finding.first_step, finding.violations) == (0, 1)
    golden(finding)
    assert mentions(finding, 10)
    assert mentions(finding, "train.py:88")  # the updates


def test_quiet_where_a_warm_up_waits_for_a_few_updates_or_for_another_optimizer() -> None:
    for events in (late(6), late(20, other=True)):
        assert quiet("TC210", events) in (Verdict.HELD, Verdict.NOT_TRIGGERED)


@pytest.mark.parametrize(
    ("make", "per", "is_wrong"),
    [
        (lambda o: lr_scheduler.StepLR(o, 2, 0.5), "update", True),
        (lambda o: lr_scheduler.StepLR(o, 2, 0.5), "epoch", False),
        (lambda o: lr_scheduler.LambdaLR(o, lambda s: s / 12), "epoch", True),
        (lambda o: lr_scheduler.LambdaLR(o, lambda s: s / 12), "update", False),
        (lambda o: lr_scheduler.CosineAnnealingLR(o, 96), "update", False),
        (lambda o: lr_scheduler.PolynomialLR(o, 96, power=4), "update", False),
    ],
    ids=["step-each-update", "step", "from-zero-each-epoch", "from-zero", "cosine", "polynomial"],
)
def test_recorded_runs(
    tmp_path: Path,
    make: Callable[[torch.optim.Optimizer], Any],
    per: str,
    is_wrong: bool,
    golden: Golden,
) -> None:
    x, y = torch.randn(8, 5), torch.randint(3, (8,))
    model = nn.Linear(5, 3)
    with recording(tmp_path / "run") as run:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = make(optimizer)
        for step in range(96):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            if per == "update" or step % 24 == 23:
                scheduler.step()
    if is_wrong:
        golden(fires("TC210", run.events), numbers=False)
    else:
        assert quiet("TC210", run.events) in (Verdict.HELD, Verdict.NOT_TRIGGERED)
