"""TC214: windows of accumulation with fewer batches than the others."""

from __future__ import annotations

from tests.checking import fires, net, quiet
from tests.golden import Golden, mentions
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict


def epochs(count: int) -> list[Event]:
    run = net()
    for _ in range(count):
        run.steps(4, accumulate=4).step(accumulate=2)
    return run.build()


BROKEN = epochs(2)


def test_fires_at_the_first_of_the_smaller_windows(golden: Golden) -> None:
    finding = fires("TC214", BROKEN)
    assert (finding.first_step, finding.severity, finding.violations) == (4, "info", 1)
    golden(finding)
    assert mentions(finding, 2, 4)


def test_fires_on_what_is_left_at_the_end(golden: Golden) -> None:
    run = net().steps(4, accumulate=4).step(accumulate=3, omit={"optimizer_step"})
    finding = fires("TC214", run.build(last_complete=False))
    golden(finding)


def test_quiet_on_equal_windows_and_without_accumulation() -> None:
    assert quiet("TC214", net().steps(6, accumulate=4).build()) is Verdict.HELD
    assert quiet("TC214", net().steps(6).build()) is Verdict.NOT_TRIGGERED


def test_quiet_on_windows_that_vary() -> None:
    run = net()
    for size in (4, 2, 3, 4, 1, 4, 2):
        run.step(accumulate=size)
    assert quiet("TC214", run.build()) is Verdict.HELD


def test_quiet_on_windows_that_are_smaller_from_some_step_on() -> None:
    run = net().steps(4, accumulate=4).steps(5, accumulate=2)
    assert quiet("TC214", run.build()) is Verdict.HELD
    assert quiet("TC214", net().steps(4, accumulate=2).steps(8).build()) is Verdict.HELD


def test_quiet_on_one_smaller_window() -> None:
    assert quiet("TC214", epochs(1)) is Verdict.HELD


def test_quiet_when_the_run_ends_within_a_step() -> None:
    run = net().steps(4, accumulate=4).step(accumulate=4)
    assert quiet("TC214", run.build(last_complete=False)) is Verdict.HELD
