"""TC202: gradients that no optimizer step ever applies."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.builders import MLP, TraceBuilder
from tests.checking import BY_CODE, Alone, fires, net, quiet
from tests.collect.recording import recording
from tests.golden import Golden, mentions
from traincheck.schema.findings import Verdict
from traincheck.schema.torch_api import Families

ALL = [f"Net.{name}" for name in MLP]


def test_fires_when_gradients_are_thrown_away() -> None:
    finding = fires("TC202", net().steps(14, omit={"optimizer_step"}).build())
    assert (finding.first_step, finding.last_step) == (0, 13)
    assert finding.variables == tuple(sorted(ALL))
    assert finding.subject.api == Families.OPTIMIZER_STEP
    assert mentions(finding, "opt0 (Adam)", "train.py:84")


def test_fires_when_gradients_pile_up() -> None:
    finding = fires("TC202", net().steps(4, omit={"optimizer_step", "zero_grad"}).build())
    assert finding.first_step == 0


@pytest.mark.parametrize("steps", [2, 5, 9])
def test_fires_when_the_run_ends_before_that(steps: int) -> None:
    finding = fires("TC202", net().steps(steps, omit={"optimizer_step"}).build())
    assert (finding.first_step, finding.last_step) == (0, steps - 1)
    assert finding.violations == 2 * len(ALL)


def test_fires_while_the_run_goes_on() -> None:
    monitor = Alone(BY_CODE["TC202"])
    events = net().steps(11, omit={"optimizer_step"}).build()
    told = [(e.step, {v.step for v in found}) for e in events if (found := monitor.observe(e))]
    assert told == [(9, {0, 9}), (10, {10})]


@pytest.mark.parametrize("tasks", [3, 9])
def test_quiet_when_the_gradients_of_several_tasks_are_combined(tasks: int) -> None:
    events = net()
    for _ in range(3):
        events.steps(tasks, omit={"optimizer_step"})
        events.begin_step().zero_grad().optimizer_step()
    assert quiet("TC202", events.build()) is Verdict.HELD


def test_quiet_when_the_optimizer_steps() -> None:
    assert quiet("TC202", net().steps(4).build()) is Verdict.HELD


def test_quiet_on_accumulation() -> None:
    assert quiet("TC202", net().steps(3, accumulate=8).build()) is Verdict.HELD


def test_quiet_on_a_run_that_stops_in_its_second_step() -> None:
    events = net().steps(2, omit={"optimizer_step"}).build(last_complete=False)
    assert quiet("TC202", events) is Verdict.HELD


def test_quiet_on_one_step_alone() -> None:
    assert quiet("TC202", net().step(omit={"optimizer_step"}).steps(3).build()) is Verdict.HELD


def test_quiet_on_backward_after_training() -> None:
    events = net().steps(3).steps(4, omit={"optimizer_step"}).build()
    assert quiet("TC202", events) is Verdict.HELD


def test_fires_when_the_optimizer_steps_no_more(golden: Golden) -> None:
    finding = fires("TC202", net().steps(5).steps(32, omit={"optimizer_step"}).build())
    assert (finding.first_step, finding.last_step) == (5, 36)
    assert finding.variables == tuple(sorted(ALL))
    assert finding.violations == 2 * len(ALL)
    golden(finding)
    assert mentions(finding, "opt0 (Adam)")


def test_tells_before_the_end_of_a_long_run() -> None:
    monitor = Alone(BY_CODE["TC202"])
    events = net().steps(2).steps(302, omit={"optimizer_step"}).build()
    told = [(e.step, {v.step for v in found}) for e in events if (found := monitor.observe(e))]
    assert told == [(301, {2, 301}), (302, {302}), (303, {303})]
    assert monitor.finish() == []


@pytest.mark.parametrize(
    "case", ["resumed", "too few", "another line", "not cleared", "several tasks", "not recorded"]
)
def test_quiet_on_gradients_after_training_or_between_updates(case: str) -> None:
    events = net()
    if case == "several tasks":  # of which each clears its gradients, for one update in the end
        events.steps(1)
        for _ in range(3):
            events.steps(20, omit={"optimizer_step"}).steps(1)
        events.steps(39, omit={"optimizer_step"}).steps(1)
        assert quiet("TC202", events.build()) is Verdict.HELD
        return
    if case == "resumed":  # the same function validates, and computes gradients for nothing
        events = net().steps(20).steps(90, omit={"optimizer_step"}).steps(20)
        assert quiet("TC202", events.build()) is Verdict.HELD
        return
    omit = {"optimizer_step", "zero_grad"} if case == "not cleared" else {"optimizer_step"}
    after = events.steps(5).build()[-1].step + 1
    found = events.steps(29 if case == "too few" else 60, omit=omit).build()
    if case == "another line":
        found = [
            event.replace(where="fisher.py:3")
            if event.kind == "call" and event.api == Families.BACKWARD and event.step >= after
            else event
            for event in found
        ]
    elif case == "not recorded":  # but counted: every third is recorded, and the others step
        events = net().steps(5)
        for _ in range(40):
            events.step(omit=omit)
            events.begin_step()
            events.counters["optimizer_step"] = 1
            events.end_step(recorded=False)
        found = events.build()
    assert quiet("TC202", found) is Verdict.HELD


def test_fires_when_a_condition_for_the_update_is_never_true() -> None:
    events = net().begin_step()
    for _ in range(64):
        events.forward().backward()
    finding = fires("TC202", events.build(last_complete=False))
    assert finding.first_step == 0
    assert finding.variables == tuple(sorted(ALL))


@pytest.mark.parametrize(("passes", "before"), [(63, 0), (100, 1)])
def test_quiet_on_a_run_that_ends_within_an_accumulation(passes: int, before: int) -> None:
    events = net().steps(before).begin_step()
    for _ in range(passes):
        events.forward().backward()
    assert quiet("TC202", events.build(last_complete=False)) is not Verdict.VIOLATED


def test_the_place_is_that_of_the_pass_that_reaches_what_is_not_updated() -> None:
    """Of a GAN: the generator's, though the critic's comes first."""
    events = TraceBuilder().process().model("G").model("D")
    gen, dis = [[f"{m}.{name}" for name in MLP] for m in "GD"]
    events.optimizer(names=gen).optimizer(names=dis)
    for _ in range(31):
        events.begin_step().zero_grad("opt1").forward("D").backward(dis).optimizer_step("opt1")
        events.zero_grad("opt0").forward().backward(gen)
    trace = events.build()
    passes = [e.span for e in trace if e.kind == "call" and e.api == Families.BACKWARD]
    finding = fires("TC202", trace)
    assert mentions(finding, "opt0")
    assert finding.evidence[0].span == passes[1]


def test_quiet_without_an_optimizer() -> None:
    events = TraceBuilder().process().model()
    for _ in range(4):
        events.begin_step().forward().backward()
    assert quiet("TC202", events.build()) is Verdict.NOT_TRIGGERED


def test_quiet_when_the_gradients_are_of_no_optimizer() -> None:
    events = TraceBuilder().process().model("Net").model("Other").optimizer(names=ALL)
    others = [name.replace("Net", "Other") for name in ALL]
    for _ in range(4):
        events.begin_step().forward("Other").backward(others)
    assert quiet("TC202", events.build()) is Verdict.NOT_TRIGGERED


def test_quiet_when_one_of_two_optimizers_waits() -> None:
    events = TraceBuilder().process().model("G").model("D")
    gen, dis = [[f"{m}.{name}" for name in MLP] for m in "GD"]
    events.optimizer(names=gen).optimizer(names=dis)
    for _ in range(4):
        events.begin_step().zero_grad("opt0").forward().backward().optimizer_step("opt0")
    assert quiet("TC202", events.build()) is Verdict.HELD


def test_quiet_on_steps_that_grad_scaler_skips() -> None:
    events = net()
    for _ in range(4):
        events.begin_step().zero_grad().forward().backward()
        events.call("torch.amp.GradScaler.step", family=Families.SCALER_STEP)
        events.count(scaler_step=1)
    assert quiet("TC202", events.build()) is Verdict.HELD


@pytest.mark.parametrize("counted", ["updated", "unknown"])
def test_quiet_when_a_gap_lies_between(counted: str) -> None:
    events = net().step(omit={"optimizer_step"})
    events.begin_step()
    events.counters["backward"] = events.counters["optimizer_step"] = 1
    if counted == "unknown":
        events.counters = {}
    events.end_step(recorded=False).step(omit={"optimizer_step"})
    assert quiet("TC202", events.build()) is Verdict.HELD


def test_fires_when_the_steps_that_were_not_recorded_had_no_update_either() -> None:
    events = net()
    for _ in range(3):
        events.step(omit={"optimizer_step"})
        for _ in range(4):
            events.begin_step()
            events.counters["backward"] = 1
            events.end_step(recorded=False)
    assert fires("TC202", events.build()).first_step == 0


def adversaries(count: int, *, steps: frozenset[str] = frozenset({"opt0"})) -> TraceBuilder:
    """Two optimizers whose gradients are cleared and computed in each step."""
    trace = TraceBuilder().process().model("G", MLP).model("D", MLP)
    trace.optimizer(names=[f"G.{n}" for n in MLP]).optimizer(names=[f"D.{n}" for n in MLP])
    for _ in range(count):
        trace.begin_step().batch().zero_grad("opt0").zero_grad("opt1").forward().backward()
        for owner in sorted(steps):
            trace.optimizer_step(owner)
    return trace


def test_fires_on_one_of_two_that_is_made_ready_and_never_steps() -> None:
    finding = fires("TC202", adversaries(32).build())
    assert (finding.first_step, finding.violations) == (0, len(MLP))
    assert all(name.startswith("D.") for name in finding.variables)
    assert mentions(finding, "opt1 (Adam)")


def test_quiet_on_an_optimizer_around_another() -> None:
    """SAM as it is mostly copied: first_step(), second_step(), which steps the inner one."""
    trace = net().optimizer()
    for _ in range(40):
        for _ in range(2):
            trace.begin_step().zero_grad("opt0").forward().backward()
        trace.optimizer_step("opt1")
    assert quiet("TC202", trace.build()) is Verdict.HELD


def test_quiet_on_two_that_step_and_on_one_that_may_wait() -> None:
    both = frozenset({"opt0", "opt1"})
    assert quiet("TC202", adversaries(32, steps=both).build()) is Verdict.HELD
    assert quiet("TC202", adversaries(20).build()) is Verdict.HELD
    late = adversaries(32)
    late.begin_step().zero_grad("opt0").zero_grad("opt1").forward().backward()
    late.optimizer_step("opt0").optimizer_step("opt1")
    assert quiet("TC202", late.build()) is Verdict.HELD


@pytest.mark.parametrize("clears", ["optimizer", "model"])
@pytest.mark.parametrize("writes", [True, False])
def test_updates_by_hand_beside_an_optimizer(tmp_path: Path, clears: str, writes: bool) -> None:
    """As of Langevin dynamics, for which none has a class."""
    with recording(tmp_path / "run") as run:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(14):
            (optimizer if clears == "optimizer" else model).zero_grad()
            model(torch.randn(8, 4)).pow(2).mean().backward()
            for parameter in model.parameters() if writes else ():
                assert parameter.grad is not None
                parameter.data.add_(parameter.grad, alpha=-0.1)
    if writes:
        assert quiet("TC202", run.events) is Verdict.HELD
    else:
        assert fires("TC202", run.events).first_step == 0
