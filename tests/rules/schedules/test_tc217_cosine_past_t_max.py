"""TC217: a cosine schedule that is stepped past its end."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tests.checking import fires, net, quiet
from tests.golden import mentions
from tests.rules.window import schedule
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict


def loop(
    rates: Sequence[float], *, also: str | None = None, cls: str = "CosineAnnealingLR"
) -> list[Event]:
    """A step with each rate, each set by the scheduler; ``also`` is stepped beside it."""
    trace = net(lr=rates[0])
    for rate in rates[1:]:
        trace.begin_step().zero_grad().forward().backward().optimizer_step()
        schedule(trace, lr=rate, cls=cls)
        if also is not None:
            schedule(trace, cls=also)
    return trace.build()


def cosine(t_max: int, steps: int) -> list[float]:
    return [0.1 * (1 + math.cos(math.pi * step / t_max)) / 2 for step in range(steps)]


BROKEN = loop(cosine(5, 14))


def test_fires_where_the_rate_rises_again() -> None:
    finding = fires("TC217", BROKEN)
    assert (finding.severity, finding.violations) == ("info", 1)
    assert 4 <= finding.first_step <= 6
    assert mentions(finding, "train.py:90")


def test_quiet_on_a_schedule_that_lasts() -> None:
    assert quiet("TC217", loop(cosine(20, 14))) is Verdict.HELD


def test_quiet_on_one_step_past_the_end() -> None:
    assert quiet("TC217", loop(cosine(5, 7))) is Verdict.HELD


def test_quiet_on_restarts_and_warm_up() -> None:
    rates = cosine(5, 14)
    for trace in (
        loop(rates, cls="CosineAnnealingWarmRestarts"),
        loop(rates, also="LinearLR"),
        loop(rates, cls="SequentialLR"),
    ):
        assert quiet("TC217", trace) is Verdict.NOT_TRIGGERED
