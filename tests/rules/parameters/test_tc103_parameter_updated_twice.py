"""TC103: one gradient, applied by two optimizers."""

from __future__ import annotations

from tests.builders import ADAM, MLP, SGD, TraceBuilder
from tests.checking import fires, quiet
from tests.golden import mentions
from traincheck.schema.findings import Verdict

ALL = [f"Net.{name}" for name in MLP]


def two(first: list[str] = ALL, second: list[str] = ALL[2:]) -> TraceBuilder:
    return TraceBuilder().process().model().optimizer(ADAM, first).optimizer(SGD, second)


def both(trace: TraceBuilder, steps: int = 3) -> TraceBuilder:
    for _ in range(steps):
        trace.begin_step().zero_grad("opt0").zero_grad("opt1").forward().backward()
        trace.optimizer_step("opt0").optimizer_step("opt1")
    return trace


BROKEN = both(two()).build()


def test_fires_on_what_both_hold() -> None:
    finding = fires("TC103", BROKEN)
    assert (finding.first_step, finding.last_step) == (0, 2)
    assert finding.variables == tuple(sorted(ALL[2:]))
    assert mentions(finding, "opt0 (Adam) and opt1 (SGD)")


def test_quiet_on_optimizers_that_share_nothing() -> None:
    assert quiet("TC103", both(two(ALL[:2])).build()) is Verdict.HELD


def test_quiet_when_they_take_turns() -> None:
    trace = two(second=ALL)
    for step in range(6):
        optimizer = "opt0" if step < 3 else "opt1"
        trace.begin_step().zero_grad(optimizer).forward().backward().optimizer_step(optimizer)
    assert quiet("TC103", trace.build()) is Verdict.HELD


def test_quiet_when_the_gradient_is_another_one() -> None:
    trace = two(second=ALL)
    for _ in range(3):
        trace.begin_step().zero_grad("opt0").forward().backward().optimizer_step("opt0")
        trace.zero_grad("opt1").forward().backward().optimizer_step("opt1")
    assert quiet("TC103", trace.build()) is Verdict.HELD


def test_quiet_when_one_wraps_the_other() -> None:
    trace = two(second=ALL)
    for _ in range(3):
        trace.begin_step().zero_grad("opt0").forward().backward()
        outer = trace.new_span()
        with trace.inside(outer):
            trace.optimizer_step("opt0")
        trace.optimizer_step("opt1").edit(trace.events[-1], span=outer)
    assert quiet("TC103", trace.build()) is Verdict.HELD
