"""TC208: a scaler that never lets its optimizer step."""

from __future__ import annotations

from tests.checking import fires, net, quiet
from tests.golden import Golden, mentions
from tests.rules.window import scale, scaler_step, schedule
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict
from traincheck.schema.torch_api import Families


def loop(skipped: int, stepped: int = 0, *, enabled: bool = True) -> list[Event]:
    trace = net()
    for number in range(skipped + stepped):
        scale(trace.begin_step().zero_grad().forward()).backward()
        scaler_step(trace, skips=number < skipped, enabled=enabled)
        schedule(trace)
    return trace.build()


BROKEN = loop(12)


def test_fires_after_ten_in_a_row(golden: Golden) -> None:
    finding = fires("TC208", loop(12, 3))
    assert finding.first_step == 0
    assert finding.subject.api == Families.SCALER_STEP
    golden(finding)
    assert mentions(finding, 10, "opt0 (Adam)", 9)


def test_fires_when_a_run_ends_without_any() -> None:
    assert fires("TC208", loop(4)).first_step == 0


def test_quiet_while_the_scale_settles() -> None:
    assert quiet("TC208", loop(6, 4)) is Verdict.HELD
    assert quiet("TC208", loop(2)) is Verdict.HELD


def test_quiet_where_some_are_skipped() -> None:
    trace = net()
    for number in range(30):
        scale(trace.begin_step().zero_grad().forward()).backward()
        scaler_step(trace, skips=number % 3 != 0)
    assert quiet("TC208", trace.build()) is Verdict.HELD


def test_quiet_when_disabled() -> None:
    assert quiet("TC208", loop(12, enabled=False)) is Verdict.HELD


def test_quiet_when_steps_were_not_recorded() -> None:
    trace = net()
    for _ in range(4):
        scale(trace.begin_step().zero_grad().forward()).backward()
        scaler_step(trace, skips=True)
        trace.skipped_steps(5)
    assert quiet("TC208", trace.build()) is Verdict.HELD
