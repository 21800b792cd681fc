"""TC203: an optimizer that steps when there is nothing to apply."""

from __future__ import annotations

import pytest

from tests.builders import LINEAR, MLP, TraceBuilder
from tests.checking import fires, net, quiet
from tests.golden import Golden, mentions
from tests.rules.window import forward
from traincheck.schema.findings import Verdict
from traincheck.schema.torch_api import Families

ALL = [f"Net.{name}" for name in MLP]


def test_fires_when_the_step_comes_before_backward() -> None:
    finding = fires("TC203", net().steps(4, style="C").build())
    assert (finding.first_step, finding.last_step) == (0, 3)
    assert mentions(finding, "train.py:88")
    assert mentions(finding.message, *ALL)  # the variables that are not trained


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


GENERATOR = {f"{name}.{n}" for name in ("G", "Both.g") for n in MLP}


def adversaries(
    count: int,
    *,
    cut: bool,
    grad: bool = True,
    roots: tuple[str, str] = ("G", "D"),
    **options: bool,
) -> TraceBuilder:
    """A generator whose images may be detached in its own loss, and what judges them.

    frozen: what judges them rests meanwhile. zeros: gradients come to both, and all are zero.
    """
    trace = TraceBuilder().process()
    if roots[0] == "G":
        trace.model("G", MLP).model("D", MLP)
    else:
        trace.model("Both", {f"{part}.{n}": LINEAR for part in ("g", "d") for n in MLP})
    trace.optimizer(names=[f"{roots[0]}.{n}" for n in MLP])
    trace.optimizer(names=[f"{roots[1]}.{n}" for n in MLP])
    for _ in range(count):
        forward(trace.begin_step().batch(), module=roots[0], grad=grad)
        forward(trace.zero_grad("opt1"), module=roots[1]).backward(skip=GENERATOR)
        trace.optimizer_step("opt1").zero_grad("opt0")
        if options.get("zeros"):
            zeros(trace)
        elif options.get("frozen"):
            trace.backward(only=())
        else:
            trace.backward(skip=GENERATOR if cut else ())
        trace.optimizer_step("opt0")
    return trace


def zeros(trace: TraceBuilder) -> None:
    """A backward pass of a loss that is multiplied by zero."""
    span = trace.new_span()
    for name, variable in trace.parameters().items():
        if name in GENERATOR:
            trace.state(variable, "gradient", "set", after=span, zero=True)
    trace.call(Families.BACKWARD, span=span)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("roots", [("G", "D"), ("Both.g", "Both.d")])
def test_fires_soon_on_what_never_gets_a_gradient(
    roots: tuple[str, str], frozen: bool, golden: Golden
) -> None:
    finding = fires("TC203", adversaries(5, cut=True, roots=roots, frozen=frozen).build())
    assert (finding.first_step, finding.subject.module) == (0, roots[0])
    golden(finding)
    assert mentions(finding.fix, roots[0])


def test_quiet_on_one_that_does_or_that_runs_without_a_graph() -> None:
    assert quiet("TC203", adversaries(60, cut=False).build()) is Verdict.HELD
    assert quiet("TC203", adversaries(60, cut=True, grad=False).build()) is Verdict.HELD
    assert quiet("TC203", adversaries(3, cut=True).build()) is Verdict.HELD


def test_quiet_on_a_loss_that_counts_for_nothing_yet() -> None:
    """As a discriminator's may for thousands of steps: its gradients are zeros."""
    assert quiet("TC203", adversaries(60, cut=True, zeros=True).build()) is Verdict.HELD


def test_quiet_on_a_generator_that_is_frozen_while_the_other_warms_up() -> None:
    trace = TraceBuilder().process().model("G", MLP, frozen=GENERATOR).model("D", MLP)
    trace.optimizer(names=[f"G.{n}" for n in MLP]).optimizer(names=[f"D.{n}" for n in MLP])
    for _ in range(60):
        forward(forward(trace.begin_step(), module="G"), module="D")
        trace.zero_grad("opt1").backward().optimizer_step("opt1")
        trace.zero_grad("opt0").backward().optimizer_step("opt0")
    assert quiet("TC203", trace.build()) is Verdict.HELD


@pytest.mark.parametrize("order", [("opt0", "opt1"), ("opt1", "opt0")])
def test_a_model_may_wait_while_others_apply_what_came(
    order: tuple[str, str], golden: Golden
) -> None:
    """One loss for both, in which it has no part: for fifty steps that is a warm-up."""

    def joint(count: int) -> TraceBuilder:
        trace = TraceBuilder().process().model("G", MLP).model("D", MLP)
        trace.optimizer(names=[f"G.{n}" for n in MLP]).optimizer(names=[f"D.{n}" for n in MLP])
        for _ in range(count):
            forward(forward(trace.begin_step(), module="G"), module="D")
            trace.zero_grad("opt0").zero_grad("opt1").backward(skip=GENERATOR)
            trace.optimizer_step(order[0]).optimizer_step(order[1])
        return trace

    assert quiet("TC203", joint(40).build()) is Verdict.HELD
    finding = fires("TC203", joint(52).build())
    assert finding.subject.module == "G"
    golden(finding)


def test_tells_that_backward_is_never_called(golden: Golden) -> None:
    events = net()
    for _ in range(52):
        forward(events.begin_step().zero_grad()).optimizer_step()
    finding = fires("TC203", events.build())
    golden(finding)
    assert mentions(finding, "loss.backward()")


def test_quiet_on_a_part_that_waits() -> None:
    """Of a model that another optimizer trains: its turn may come."""
    trace = TraceBuilder().process().model().optimizer(names=ALL[:2]).optimizer(names=ALL[2:])
    for _ in range(60):
        forward(trace.begin_step().zero_grad()).backward(skip=ALL[2:])
        trace.optimizer_step("opt0").optimizer_step("opt1")
    assert quiet("TC203", trace.build()) is Verdict.HELD
