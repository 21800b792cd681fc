"""TC211: a scheduler that nobody steps."""

from __future__ import annotations

from tests.checking import fires, net, quiet
from tests.rules.window import batch, schedule, scheduler_made
from traincheck.schema.apis import Families
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict


def loop(epochs: int, *, makes: bool = True, steps_at: int | None = None) -> list[Event]:
    trace = scheduler_made(net()) if makes else net()
    for epoch in range(epochs):
        for index in range(3):
            batch(trace.begin_step(), index, epoch)
            trace.zero_grad().forward().backward().optimizer_step()
        if steps_at is not None and epoch >= steps_at:
            schedule(trace)
    return trace.build()


BROKEN = loop(4)


def test_fires_after_three_epochs() -> None:
    finding = fires("TC211", BROKEN)
    assert (finding.first_step, finding.violations) == (3, 1)
    assert finding.subject.api == Families.SCHEDULER_STEP
    assert "StepLR, made for opt0 (Adam)" in finding.message
    assert "train.py:42" in finding.likely_cause


def test_quiet_when_it_is_stepped() -> None:
    assert quiet("TC211", loop(5, steps_at=0)) is Verdict.HELD
    assert quiet("TC211", loop(5, steps_at=2)) is Verdict.HELD


def second_phase(*, steps: bool) -> list[Event]:
    """A scheduler for four epochs, then another one, as for weights that are averaged."""
    trace = scheduler_made(net())
    for epoch in range(8):
        if epoch == 4:
            scheduler_made(trace)
        for index in range(3):
            batch(trace.begin_step(), index, epoch)
            trace.zero_grad().forward().backward().optimizer_step()
        if epoch < 4 or steps:
            schedule(trace)
    return trace.build()


def test_a_second_scheduler_has_its_own_time() -> None:
    assert quiet("TC211", second_phase(steps=True)) is Verdict.HELD
    assert fires("TC211", second_phase(steps=False)).first_step == 15


def test_quiet_without_one_or_in_a_short_run() -> None:
    assert quiet("TC211", loop(5, makes=False)) is Verdict.NOT_TRIGGERED
    assert quiet("TC211", loop(3)) is Verdict.NOT_TRIGGERED
