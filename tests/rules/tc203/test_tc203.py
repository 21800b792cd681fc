"""TC203: an optimizer that steps when there is nothing to apply."""

from __future__ import annotations

import pytest

from tests.builders import MLP, TraceBuilder
from tests.checking import fires, net, quiet
from tests.rules.window import forward
from traincheck.schema.findings import Verdict

ALL = [f"Net.{name}" for name in MLP]


def test_fires_when_the_step_comes_before_backward() -> None:
    finding = fires("TC203", net().steps(4, style="C").build())
    assert (finding.first_step, finding.last_step) == (0, 3)
    assert "train.py:88" in finding.likely_cause
    assert all(name in finding.message for name in ALL)  # the variables that are not trained


@pytest.mark.parametrize("set_to_none", [True, False])
def test_fires_when_gradients_are_cleared_before_the_step(set_to_none: bool) -> None:
    events = net()
    for _ in range(3):
        events.begin_step().forward().backward().zero_grad(set_to_none=set_to_none).optimizer_step(
            skip=ALL
        )
    finding = fires("TC203", events.build())
    assert (finding.first_step, finding.last_step) == (0, 2)


def test_fires_from_where_the_order_is_wrong() -> None:
    finding = fires("TC203", net().steps(3).steps(4, style="C").build())
    assert finding.first_step == 3


@pytest.mark.parametrize("style", ["A", "B"])
def test_quiet_on_healthy_loops(style: str) -> None:
    assert quiet("TC203", net().steps(4, style=style).build()) is Verdict.HELD


def test_quiet_on_a_single_step_before_training() -> None:
    events = net().optimizer_step().steps(4).build()
    assert quiet("TC203", events) is Verdict.HELD


def test_quiet_on_one_wasted_iteration() -> None:
    events = net().steps(2)
    events.begin_step().forward().backward().zero_grad().optimizer_step()
    events.steps(2)
    events.begin_step().forward().backward().zero_grad().optimizer_step()
    assert quiet("TC203", events.steps(1).build()) is Verdict.HELD


def test_quiet_on_iterations_without_a_gradient() -> None:
    events = net().steps(2).steps(4, omit={"backward"}).steps(2).build()
    assert quiet("TC203", events) is Verdict.HELD


def test_quiet_on_an_optimizer_that_is_idle() -> None:
    events = TraceBuilder().process().model().optimizer(names=ALL[:2]).optimizer(names=ALL[2:])
    events.steps(5, no_gradient=ALL[2:])
    assert quiet("TC203", events.build()) is Verdict.HELD


def test_quiet_when_gradients_are_assigned_by_hand() -> None:
    # gradients that were seen are cleared, and the step moves parameters all the same
    events = net()
    for _ in range(4):
        events.begin_step().forward().backward().zero_grad()
        for parameter in events.models["Net"].parameters.values():
            parameter.has_grad = True
        events.optimizer_step()
        for parameter in events.models["Net"].parameters.values():
            parameter.has_grad = False
    assert quiet("TC203", events.build()) is Verdict.HELD


def test_quiet_when_a_gap_lies_between() -> None:
    events = net().steps(2, style="C").skipped_steps(1).steps(2, style="C").build()
    assert quiet("TC203", events) is Verdict.HELD


def adversaries(count: int, *, cut: bool, grad: bool = True) -> TraceBuilder:
    """A generator whose images may be detached in its own loss, and what judges them."""
    trace = TraceBuilder().process().model("G", MLP).model("D", MLP)
    trace.optimizer(names=[f"G.{n}" for n in MLP]).optimizer(names=[f"D.{n}" for n in MLP])
    generator = {f"G.{n}" for n in MLP}
    for _ in range(count):
        forward(trace.begin_step(), module="G", grad=grad)
        forward(trace.zero_grad("opt1"), module="D").backward(skip=generator)
        trace.optimizer_step("opt1").zero_grad("opt0")
        trace.backward(skip=generator if cut else ()).optimizer_step("opt0")
    return trace


def test_fires_on_a_model_that_never_gets_a_gradient() -> None:
    finding = fires("TC203", adversaries(52, cut=True).build())
    assert (finding.first_step, finding.subject.module) == (0, "G")
    assert "cut off" in finding.likely_cause


def test_quiet_on_one_that_does_or_that_runs_without_a_graph() -> None:
    assert quiet("TC203", adversaries(60, cut=False).build()) is Verdict.HELD
    assert quiet("TC203", adversaries(60, cut=True, grad=False).build()) is Verdict.HELD
    assert quiet("TC203", adversaries(40, cut=True).build()) is Verdict.HELD


def test_quiet_on_a_part_that_waits() -> None:
    """Of a model that another optimizer trains: its turn may come."""
    trace = TraceBuilder().process().model().optimizer(names=ALL[:2]).optimizer(names=ALL[2:])
    for _ in range(60):
        forward(trace.begin_step().zero_grad()).backward(skip=ALL[2:])
        trace.optimizer_step("opt0").optimizer_step("opt1")
    assert quiet("TC203", trace.build()) is Verdict.HELD
