"""TC102: parameters that an optimizer step leaves as they were."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.builders import MLP, MLP_BN, TraceBuilder
from tests.checking import fires, net, quiet
from tests.collect.recording import recording
from tests.golden import Golden, mentions
from tests.rules.numbers import norm, numbered
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict
from traincheck.schema.torch_api import Families

STUCK = "Net.fc1.weight"
ALL = [f"Net.{name}" for name in MLP]
ALL_BN = ["Net.bn.weight", "Net.bn.bias"]


def test_fires_on_one_parameter_after_three_steps() -> None:
    finding = fires("TC102", net().steps(1).steps(3, not_updated=[STUCK]).build())
    assert finding.variables == (STUCK,)
    assert (finding.first_step, finding.last_step) == (1, 1)
    assert mentions(finding.title, STUCK)


def test_fires_again_in_every_further_step() -> None:
    finding = fires("TC102", net().steps(6, not_updated=[STUCK]).build())
    assert (finding.first_step, finding.last_step, finding.violations) == (0, 5, 4)


def test_fires_after_two_steps_when_nothing_moves() -> None:
    finding = fires("TC102", net().steps(2, not_updated=ALL).build())
    assert finding.variables == tuple(sorted(ALL))
    assert finding.first_step == 0


@pytest.mark.parametrize("count", [1, 2])
def test_quiet_when_one_parameter_rests_for_a_step_or_two(count: int) -> None:
    events = net().steps(1).steps(count, not_updated=[STUCK]).steps(2)
    events.steps(count, not_updated=[STUCK]).steps(1)
    assert quiet("TC102", events.build()) is Verdict.HELD


def test_quiet_when_all_rest_for_one_step() -> None:
    events = net().steps(2).steps(1, not_updated=ALL).steps(2).build()
    assert quiet("TC102", events) is Verdict.HELD


def test_quiet_when_all_moves() -> None:
    assert quiet("TC102", net().steps(4).build()) is Verdict.HELD


def test_quiet_at_a_learning_rate_of_zero() -> None:
    assert quiet("TC102", net(lr=0.0).steps(5, not_updated=ALL).build()) is Verdict.NOT_TRIGGERED


def test_quiet_when_the_rate_was_zero_at_the_step_and_is_raised_after_it() -> None:
    events = net(lr=0.0)
    for _ in range(4):  # the scheduler steps before the end of the step is recorded
        events.step(not_updated=ALL)
        events.optimizers["opt0"].hyper["lr"] = 1e-3
        events.end_step()
        events.optimizers["opt0"].hyper["lr"] = 0.0
        events.step(not_updated=ALL).end_step()
    assert quiet("TC102", events.build()) is Verdict.NOT_TRIGGERED


def test_quiet_at_the_end_of_a_schedule_where_updates_round_to_nothing() -> None:
    ended = net().steps(2)
    for rate in (9e-6, 4e-6, 1e-6, 3e-7):  # as OneCycleLR ends
        ended.optimizers["opt0"].hyper["lr"] = rate
        ended.step(not_updated=[STUCK]).end_step()
    assert quiet("TC102", ended.build()) is Verdict.HELD


def test_quiet_at_the_first_faint_rates_of_a_long_warm_up() -> None:
    events = net(lr=1e-8)
    for number in range(1, 6):
        events.optimizers["opt0"].hyper["lr"] = number * 1e-8
        events.step(not_updated=ALL).end_step()
    assert quiet("TC102", events.build()) is Verdict.HELD


def test_fires_in_the_middle_of_a_schedule_and_at_a_rate_that_is_always_faint() -> None:
    events = net().steps(2)
    for rate in (9e-4, 5e-4, 2e-4):
        events.optimizers["opt0"].hyper["lr"] = rate
        events.step(not_updated=[STUCK]).end_step()
    assert fires("TC102", events.build()).first_step == 2
    assert fires("TC102", net(lr=1e-9).steps(3, not_updated=[STUCK]).build()).first_step == 0


def test_quiet_on_a_learning_rate_that_cannot_be_read() -> None:
    events = net(lr=None).steps(5, not_updated=ALL).build()  # type: ignore[arg-type]
    assert quiet("TC102", events) is Verdict.NOT_TRIGGERED


def scaled(*, stuck: bool) -> TraceBuilder:
    """Steps of a fused optimizer under GradScaler, which skips inside its kernel when ``stuck``."""
    events = net()
    for _ in range(4):
        events.begin_step().zero_grad().forward().backward()
        events.optimizer_step(skip=ALL if stuck else ())
        events.call("torch.amp.GradScaler.step", family=Families.SCALER_STEP)
        events.count(scaler_step=1)
    return events


def test_quiet_on_steps_that_grad_scaler_skips() -> None:
    assert quiet("TC102", scaled(stuck=True).build()) is Verdict.HELD
    assert quiet("TC102", scaled(stuck=False).build()) is Verdict.HELD


def test_quiet_without_a_gradient() -> None:
    events = net().steps(5, no_gradient=[STUCK], not_updated=[STUCK]).build()
    assert quiet("TC102", events) is Verdict.HELD


def test_quiet_on_gradients_of_zero() -> None:
    events = net()
    stuck = events.models["Net"].parameters[STUCK]
    for _ in range(5):
        events.begin_step().zero_grad().forward().backward(skip=[STUCK])
        events.state(stuck, "gradient", "set", zero=True)
        events.optimizer_step(skip=[STUCK])
    assert quiet("TC102", events.build()) is Verdict.HELD


def converged(*, left: float, begun: int = 4, dtype: str = "float32") -> list[Event]:
    """Steps of which the later ones change nothing, and have gradients of the size ``left``."""
    trace = net().steps(begun).steps(10 - begun, not_updated=ALL).build()
    events = numbered(trace, gradient=lambda name, at: norm(left if at >= 4 else 2.0))
    return [
        event.replace(summary=event.summary.replace(dtype=dtype))
        if event.kind == "state" and event.role == "parameter" and event.summary
        else event
        for event in events
    ]


def test_quiet_once_training_has_converged_and_updates_round_to_nothing() -> None:
    assert quiet("TC102", converged(left=5e-7)) is Verdict.HELD


def test_fires_where_gradients_have_not_faded_or_nothing_ever_moved_or_in_half() -> None:
    assert fires("TC102", converged(left=0.1)).first_step == 4
    assert fires("TC102", converged(left=5e-7, begun=0)).first_step == 0
    assert fires("TC102", converged(left=5e-7, dtype="bfloat16")).first_step == 4


def test_quiet_on_frozen_parameters() -> None:
    events = TraceBuilder().process().model(frozen=[STUCK]).optimizer().steps(5).build()
    assert quiet("TC102", events) is Verdict.HELD


def test_quiet_when_the_look_cannot_tell() -> None:
    events = net()
    stuck = events.models["Net"].parameters[STUCK]
    for _ in range(5):
        events.step(not_updated=[STUCK])
        events.state(stuck, "parameter", "unknown")
    assert quiet("TC102", events.build()) is Verdict.HELD


def test_quiet_when_a_gap_lies_between() -> None:
    events = net().steps(2, not_updated=[STUCK]).skipped_steps(3).steps(2, not_updated=[STUCK])
    assert quiet("TC102", events.build()) is Verdict.HELD


def test_quiet_on_an_optimizer_with_a_closure() -> None:
    events = net(cls="torch.optim.lbfgs.LBFGS")
    for _ in range(4):
        events.begin_step().zero_grad().forward().backward()
        events.count(optimizer_step=1)
        events.call(
            "torch.optim.lbfgs.LBFGS.step",
            family=Families.OPTIMIZER_STEP,
            owner="opt0",
            args={"closure": {"type": "function"}},
        )
    assert quiet("TC102", events.build()) is Verdict.NOT_TRIGGERED


def test_quiet_when_a_wrapper_steps_around_the_optimizer() -> None:
    # the outer step finds nothing new: what moved was seen after the inner one
    events = net().optimizer("__main__.Lookahead")
    for _ in range(4):
        events.step(not_updated=()).call(
            "__main__.Lookahead.step", family=Families.OPTIMIZER_STEP, owner="opt1"
        )
    assert quiet("TC102", events.build()) is Verdict.HELD


def test_tells_how_many_do_not_change_by_dtype_and_layout(golden: Golden) -> None:
    finding = fires("TC102", net().steps(3, not_updated=[STUCK]).build())
    golden(finding)
    assert mentions(finding, "opt0 (Adam)", 1, 4)
    trace = TraceBuilder().process().model("Net", MLP)
    trace.mark("model", name="Net", strided=[STUCK]).optimizer().steps(3, not_updated=[STUCK])
    golden(fires("TC102", trace.build()))


@pytest.mark.parametrize(
    ("dtype", "shape", "rests"),
    [
        ("float32", (8,), ("bn.weight",)),
        ("bfloat16", (8,), None),
        ("float32", (8, 8), None),
        ("float32", (8,), None),
    ],
)
def test_a_scale_in_float32_may_rest_beside_a_bias_that_moves(dtype, shape, rests) -> None:
    """A small step is rounded away at one; in half precision each step is, and told."""
    stuck = ["Net.bn.weight"] if rests or (dtype, shape) != ("float32", (8,)) else ALL_BN
    trace = TraceBuilder().process().model("Net", MLP_BN).optimizer().steps(4, not_updated=stuck)
    events = [
        event.replace(summary=event.summary.replace(dtype=dtype, shape=shape))
        if event.kind == "state" and event.name == "Net.bn.weight" and event.summary
        else event
        for event in trace.build()
    ]
    if rests:
        assert quiet("TC102", events) is Verdict.HELD
    else:
        assert "Net.bn.weight" in fires("TC102", events).variables


@pytest.mark.parametrize("weight", ["parametrizations.weight.original0", "weight_g", "W"])
def test_a_bias_may_rest_beside_a_weight_of_another_name(weight: str) -> None:
    bias = "b" if weight == "W" else "bias"
    names = {f"fc.{weight}": MLP["fc1.weight"], f"fc.{bias}": MLP["fc1.bias"]}
    for stuck, is_wrong in ((bias, False), (weight, True)):
        trace = TraceBuilder().process().model("Net", names).optimizer()
        events = trace.steps(4, not_updated=[f"Net.fc.{stuck}"]).build()
        if is_wrong:
            assert fires("TC102", events).variables == (f"Net.fc.{weight}",)
        else:
            assert quiet("TC102", events) is Verdict.HELD


@pytest.mark.parametrize("share", [1e-18, 1.0])
def test_a_gradient_of_next_to_nothing_moves_nothing(tmp_path: Path, share: float) -> None:
    """As behind attention that leaves nearly everything out."""
    with recording(tmp_path / "run") as run:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        for _ in range(6):
            optimizer.zero_grad()
            hidden = model[0](torch.randn(8, 4))
            (model[1](hidden.detach()) + share * hidden[:, :2]).pow(2).mean().backward()
            optimizer.step()
    assert quiet("TC102", run.events) is Verdict.HELD
