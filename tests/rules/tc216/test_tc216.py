"""TC216: schedulers whose optimizer is idle."""

from __future__ import annotations

import pytest

from tests.builders import MLP, TraceBuilder
from tests.checking import fires, quiet
from tests.rules.window import schedule
from traincheck.schema.findings import Verdict

ALL = [f"Net.{name}" for name in MLP]


def epochs(
    trained_by: str, *, count: int = 4, rates: tuple[float, float] = (0.1, 0.1), second: int = 0
) -> TraceBuilder:
    """Two optimizers, the second over the last parameters; epochs of two steps, then a schedule.

    The scheduler belongs to opt0. second: index of the first parameter that opt1 holds.
    """
    trace = TraceBuilder().process().model("Net", MLP)
    trace.optimizer(names=ALL[: second or None], lr=rates[0])
    trace.optimizer(names=ALL[second:], lr=rates[1])
    rate = rates[0]
    for _ in range(count):
        for _ in range(2):
            trace.begin_step().zero_grad().forward().backward().optimizer_step(trained_by)
        rate *= 0.5
        schedule(trace, lr=rate)
    return trace


BROKEN = epochs("opt1").build()


def test_fires_where_the_optimizer_was_made_anew() -> None:
    finding = fires("TC216", BROKEN)
    assert finding.first_step == 2  # the first that opt1 makes after a step of the scheduler
    assert "opt0" in finding.likely_cause
    assert "opt1" in finding.likely_cause
    assert "train.py:40" in finding.likely_cause  # where opt1 was made


@pytest.mark.parametrize(
    "events",
    [
        epochs("opt0"),
        epochs("opt1", count=2),  # one step of the scheduler in vain
        epochs("opt1", second=2),  # other parameters
    ],
)
def test_quiet_on_others(events: TraceBuilder) -> None:
    assert quiet("TC216", events.build()) is Verdict.HELD


def test_quiet_on_a_wrapper_that_shares_the_rate() -> None:
    trace = TraceBuilder().process().model("Net", MLP).optimizer(lr=0.1).optimizer(lr=0.1)
    for epoch in range(4):
        for _ in range(2):
            trace.begin_step().zero_grad().forward().backward().optimizer_step("opt1")
        schedule(trace, lr=0.1 / 2**epoch)
        trace.optimizers["opt1"].hyper["lr"] = 0.1 / 2**epoch
    assert quiet("TC216", trace.build()) is Verdict.HELD


def test_quiet_on_optimizers_that_take_turns() -> None:
    trace = TraceBuilder().process().model("Net", MLP).optimizer(lr=0.1).optimizer(lr=0.3)
    for turn in range(12):
        optimizer = "opt1" if turn % 4 else "opt0"
        trace.begin_step().zero_grad().forward().backward().optimizer_step(optimizer)
        schedule(trace, lr=0.1 / (1 + turn))
    assert quiet("TC216", trace.build()) is Verdict.HELD


def test_a_gap_proves_nothing() -> None:
    trace = epochs("opt1", count=2).skipped_steps(1)
    for _ in range(2):
        trace.begin_step().zero_grad().forward().backward().optimizer_step("opt1")
        schedule(trace, lr=0.01)
    assert quiet("TC216", trace.build()) is Verdict.HELD
