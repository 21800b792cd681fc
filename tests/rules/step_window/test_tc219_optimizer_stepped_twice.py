"""TC219: an optimizer that applies each gradient twice."""

from __future__ import annotations

import pytest

from tests.builders import MLP, TraceBuilder
from tests.checking import fires, net, quiet
from tests.golden import Golden
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict
from traincheck.schema.torch_api import Families


def loop(*between: str, steps: int = 4, every: int = 1) -> list[Event]:
    """A second step in each n-th iteration, after calls of the loop."""
    trace = net()
    for step in range(steps):
        trace.begin_step().zero_grad().forward().backward().optimizer_step()
        if step % every == 0:
            for name in between:
                getattr(trace, name)()
            trace.end_step()  # as steps are counted
            trace.optimizer_step()
    return trace.build()


BROKEN = loop()


def test_fires_on_two_steps_for_each_backward(golden: Golden) -> None:
    finding = fires("TC219", BROKEN)
    assert (finding.first_step, finding.violations) == (1, 1)
    assert finding.subject.api == Families.OPTIMIZER_STEP
    golden(finding)


@pytest.mark.parametrize("between", [("forward",), ("backward",), ("zero_grad", "backward")])
def test_quiet_where_something_is_computed_between(between: tuple[str, ...]) -> None:
    assert quiet("TC219", loop(*between)) is Verdict.HELD


def test_quiet_on_what_happens_now_and_then() -> None:
    assert quiet("TC219", loop(steps=12, every=3)) is Verdict.HELD
    assert quiet("TC219", loop(steps=2)) is Verdict.HELD


def test_quiet_on_several_optimizers_after_one_backward() -> None:
    trace = TraceBuilder().process().model("G", MLP).model("D", MLP)
    for model in ("G", "D"):
        trace.optimizer(names=[f"{model}.{name}" for name in MLP])
    for _ in range(5):
        trace.begin_step().zero_grad("opt0").zero_grad("opt1").forward().backward()
        trace.optimizer_step("opt0").optimizer_step("opt1")
    assert quiet("TC219", trace.build()) is Verdict.HELD


def test_quiet_where_steps_have_nothing_to_apply() -> None:
    trace = net()
    for _ in range(5):
        trace.begin_step().forward().backward().zero_grad().optimizer_step().optimizer_step()
    assert quiet("TC219", trace.build()) is Verdict.NOT_TRIGGERED


def test_unrecorded_steps_end_what_was_counted() -> None:
    trace = net()
    for _ in range(4):
        trace.begin_step().zero_grad().forward().backward().optimizer_step().optimizer_step()
        trace.end_step().skipped_steps(1)
    assert quiet("TC219", trace.build()) is Verdict.HELD
