"""TC209: the scheduler steps before its optimizer."""

from __future__ import annotations

from tests.checking import fires, net, quiet
from tests.golden import mentions
from tests.rules.window import scaler_step, schedule
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict
from traincheck.schema.torch_api import Families


def loop(steps: int = 4, *, early: bool) -> list[Event]:
    trace = net()
    for _ in range(steps):
        trace.begin_step().zero_grad().forward().backward()
        if early:
            schedule(trace).optimizer_step()
        else:
            schedule(trace.optimizer_step())
    return trace.build()


BROKEN = loop(early=True)


def test_fires_from_the_first_step_on() -> None:
    finding = fires("TC209", BROKEN)
    assert (finding.first_step, finding.violations) == (0, 1)
    assert finding.subject.api == Families.SCHEDULER_STEP
    assert mentions(finding, "train.py:90")


def test_quiet_in_the_usual_order() -> None:
    assert quiet("TC209", loop(early=False)) is Verdict.HELD


def test_quiet_when_every_batch_of_a_window_counts() -> None:
    trace = net()
    for _ in range(4):
        trace.begin_step().zero_grad()
        for _ in range(3):
            schedule(trace.forward().backward())
        trace.optimizer_step()
    assert quiet("TC209", trace.build()) is Verdict.HELD


def test_quiet_when_the_schedule_is_moved_forward_first() -> None:
    trace = schedule(net(), times=5)
    for _ in range(4):
        schedule(trace.begin_step().zero_grad().forward().backward().optimizer_step())
    assert quiet("TC209", trace.build()) is Verdict.HELD


def test_quiet_where_grad_scaler_skips_first() -> None:
    trace = net()
    for number in range(4):
        trace.begin_step().zero_grad().forward().backward()
        schedule(scaler_step(trace, skips=number < 2))
    assert quiet("TC209", trace.build()) is Verdict.HELD
