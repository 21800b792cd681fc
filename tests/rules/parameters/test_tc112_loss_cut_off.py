"""TC112: backward() that reaches nothing."""

from __future__ import annotations

import pytest

from tests.builders import MLP, TraceBuilder
from tests.checking import fires, net, quiet, report_of
from tests.golden import Golden, mentions
from traincheck.schema.findings import Verdict

ALL = [f"Net.{name}" for name in MLP]


def cut_off(events: TraceBuilder, steps: int) -> TraceBuilder:
    """Steps whose loss does not depend on the model."""
    for _ in range(steps):
        events.begin_step().zero_grad().forward().backward(skip=ALL).optimizer_step(skip=ALL)
    return events


BROKEN = cut_off(net(), 4).build()


def test_fires_when_no_gradient_ever_comes() -> None:
    finding = fires("TC112", BROKEN)
    assert (finding.first_step, finding.last_step) == (0, 3)
    assert mentions(finding, "Net.fc1", "opt0")
    assert mentions(finding, "train.py:84")  # backward()
    assert finding.violations == 3


def test_it_is_the_only_finding() -> None:
    codes = [f.code for f in report_of(BROKEN).findings if f.severity != "info"]
    assert codes == ["TC112"]


def empty(*, frozen: bool) -> TraceBuilder:
    """The optimizer was given nothing."""
    trace = TraceBuilder().process().model("Net", MLP, frozen=ALL if frozen else [])
    return trace.optimizer(names=())


def test_an_optimizer_without_any_parameter(golden: Golden) -> None:
    finding = fires("TC112", cut_off(empty(frozen=True), 4).build())
    assert finding.first_step == 0
    golden(finding)
    assert mentions(finding, "opt0 (Adam)")
    assert quiet("TC112", empty(frozen=False).steps(4).build()) is Verdict.HELD


@pytest.mark.parametrize(
    "events",
    [
        net().steps(4),
        cut_off(net(), 1).steps(1),
        cut_off(net().steps(1), 4),  # it was there once: an iteration without anything to learn
        net().steps(4, omit={"backward"}),
        net().steps(4, omit={"optimizer_step"}),
        net().steps(4, style="C"),  # TC203's
        cut_off(cut_off(net(), 1).skipped_steps(1), 1),
    ],
)
def test_quiet_on_others(events: TraceBuilder) -> None:
    assert quiet("TC112", events.build()) in (Verdict.HELD, Verdict.NOT_TRIGGERED)


def test_quiet_when_parameters_change_all_the_same() -> None:
    events = net()
    for _ in range(4):
        events.begin_step().zero_grad().forward().backward(skip=ALL)
        for parameter in events.models["Net"].parameters.values():
            parameter.has_grad = True  # assigned by hand
        events.optimizer_step()
        for parameter in events.models["Net"].parameters.values():
            parameter.has_grad = False
    assert quiet("TC112", events.build()) is Verdict.HELD


def test_quiet_on_gradients_of_zeros() -> None:
    events = net()
    for _ in range(4):
        events.begin_step().zero_grad().forward().backward(skip=ALL)
        for parameter in events.models["Net"].parameters.values():
            events.state(parameter, "gradient", "set", zero=True)
        events.optimizer_step(skip=ALL)
    assert quiet("TC112", events.build()) is Verdict.HELD


def test_quiet_on_an_optimizer_that_waits_for_its_turn() -> None:
    events = TraceBuilder().process().model().optimizer(names=ALL[:2]).optimizer(names=ALL[2:])
    events.steps(5, no_gradient=ALL[2:])
    assert quiet("TC112", events.build()) is Verdict.HELD


@pytest.mark.parametrize("frozen", [False, True])
def test_quiet_on_an_image_that_is_optimized_with_a_model_that_is_not(frozen: bool) -> None:
    """At the gradients of tensors that no module owns nobody looks."""
    events = TraceBuilder().process().model("Net", MLP)
    events.optimizer(names=ALL if frozen else (), foreign={"opt0[0].0": 77})
    events.freeze(*ALL, frozen=frozen)
    assert quiet("TC112", cut_off(events, 4).build()) is Verdict.HELD


def test_fires_where_a_model_waits_beside_such_a_tensor() -> None:
    events = TraceBuilder().process().model("Net", MLP).optimizer(foreign={"opt0[0].8": 77})
    assert fires("TC112", cut_off(events, 4).build()).first_step == 0
