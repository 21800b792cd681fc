"""TC210: training goes on with a learning rate of zero."""

from __future__ import annotations

from collections.abc import Sequence

from tests.checking import fires, net, quiet
from tests.rules.window import schedule
from traincheck.schema.apis import Families
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict


def loop(rates: Sequence[float], *, times: int = 1) -> list[Event]:
    """After each step the scheduler sets the next rate."""
    trace = net(lr=rates[0])
    for rate in rates[1:]:
        trace.begin_step().zero_grad().forward().backward().optimizer_step()
        schedule(trace, lr=rate, times=times)
    return trace.build()


BROKEN = loop([0.3, 0.2, 0.1, 0, 0, 0, 0, 0])


def test_fires_where_the_schedule_has_ended() -> None:
    finding = fires("TC210", BROKEN)
    assert finding.first_step == 3
    assert finding.subject.api == Families.SCHEDULER_STEP
    assert "train.py:90" in finding.likely_cause


def test_fires_where_it_is_stepped_too_often() -> None:
    finding = fires("TC210", loop([0.3, 0.2, 0.1, 0, 0, 0, 0, 0], times=2))
    assert finding.first_step <= 1
    assert "stepped 2 times for each step of opt0" in finding.message


def test_quiet_on_warm_up_from_zero() -> None:
    assert quiet("TC210", loop([0.0, 0.0, 0.0, 0.0, 0.1, 0.2])) is Verdict.NOT_TRIGGERED


def test_fires_where_a_schedule_never_leaves_zero() -> None:
    finding = fires("TC210", loop([0.0] * 40))
    assert (finding.first_step, finding.violations) == (0, 1)
    assert "train.py:90" in finding.likely_cause
    assert "keeps the rate of opt0 (Adam) at zero for 10 steps" in finding.likely_cause


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


def test_fires_on_a_rate_that_is_zero_throughout() -> None:
    finding = fires("TC210", unscheduled(0.0, 12))
    assert finding.first_step == 0
    assert "opt0" in finding.likely_cause
    assert "above zero" in finding.fix


def test_quiet_on_a_short_run_or_another_rate_or_a_scheduler() -> None:
    assert quiet("TC210", unscheduled(0.0, 8)) is Verdict.NOT_TRIGGERED
    assert quiet("TC210", unscheduled(0.1, 12)) is Verdict.NOT_TRIGGERED
    assert quiet("TC210", loop([0.0] * 10)) is Verdict.NOT_TRIGGERED
    assert quiet("TC210", net(lr=0.0).steps(12, omit={"backward"}).build()) is Verdict.NOT_TRIGGERED
