"""TC710: a loss that is no better after hundreds of steps."""

from __future__ import annotations

from collections.abc import Callable

from tests.builders import TraceBuilder
from tests.checking import fires, net, quiet
from tests.rules.numbers import numbered
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict


def run(loss: Callable[[int], float | None], steps: int = 400, **options: object) -> list[Event]:
    return numbered(net().steps(steps, **options).build(), loss=loss)  # type: ignore[arg-type]


BROKEN = run(lambda step: 2.3 + 0.01 * (step % 7))


def test_fires_as_advice() -> None:
    finding = fires("TC710", BROKEN)
    assert (finding.severity, finding.first_step) == ("info", 0)


def test_quiet_on_slow_learning() -> None:
    assert quiet("TC710", run(lambda step: 2.3 - 0.0001 * step)) is Verdict.HELD


def test_quiet_on_short_runs() -> None:
    assert quiet("TC710", run(lambda step: 2.3, steps=399)) is Verdict.NOT_TRIGGERED


def test_quiet_where_the_loss_cannot_be_read() -> None:
    assert quiet("TC710", run(lambda step: None)) is Verdict.NOT_TRIGGERED


def test_quiet_on_losses_that_are_no_distance() -> None:
    assert quiet("TC710", run(lambda step: (-1.0) ** step)) is Verdict.HELD


def test_quiet_with_two_optimizers() -> None:
    trace = TraceBuilder().process().model("G").model("D")
    trace.optimizer().optimizer().steps(400)
    assert quiet("TC710", numbered(trace.build(), loss=lambda at: 2.3)) is Verdict.NOT_TRIGGERED
