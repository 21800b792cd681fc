"""TC117: a new model in no optimizer that gets gradients in each step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.builders import MLP, TraceBuilder
from tests.checking import fires, net, quiet
from tests.collect.recording import recording
from tests.golden import Golden, mentions
from traincheck.schema.events import CheckpointEvent, Event
from traincheck.schema.findings import Verdict
from traincheck.schema.torch_api import Families

HEAD = {"weights": "__main__.Margin"}


def loop(
    count: int = 17,
    *,
    frozen: bool = False,
    training: bool = True,
    trace: TraceBuilder | None = None,
) -> list[Event]:
    trace = trace or net()
    trace.model("Margin", HEAD, frozen=["Margin.weights"] if frozen else [])
    trace.train(training, "Margin")
    return trace.steps(count).build()


BROKEN = loop()


def test_fires_on_a_loss_with_weights_that_no_optimizer_holds(golden: Golden) -> None:
    finding = fires("TC117", BROKEN)
    assert (finding.first_step, finding.severity, finding.violations) == (0, "warning", 1)
    assert finding.subject.module == "Margin"
    golden(finding)
    assert mentions(finding, "Margin.weights", "opt0 (Adam)")


@pytest.mark.parametrize("events", [loop(15), loop(frozen=True), loop(training=False)])
def test_quiet_on_short_runs_frozen_models_and_in_evaluation_mode(events: list[Event]) -> None:
    assert quiet("TC117", events) is Verdict.HELD


@pytest.mark.parametrize(
    "loaded", [{"op": "load_state_dict", "target": "Margin"}, {"op": "load", "path": "net.pt"}]
)
def test_quiet_where_its_weights_may_have_been_loaded(loaded: dict[str, str]) -> None:
    trace = net().add(CheckpointEvent, **loaded)
    assert quiet("TC117", loop(trace=trace)) is Verdict.HELD


def test_quiet_when_an_optimizer_holds_it() -> None:
    both = TraceBuilder().process().model("Net", MLP).model("Margin", HEAD)
    assert quiet("TC117", both.optimizer().steps(17).build()) is Verdict.HELD


def test_quiet_when_its_gradients_are_cleared() -> None:
    trace = net().model("Margin", HEAD)
    for _ in range(17):
        trace.begin_step().zero_grad()
        trace.call("torch.nn.Module.zero_grad", family=Families.ZERO_GRAD, module="Margin")
        trace.forward().backward().optimizer_step()
    assert quiet("TC117", trace.build()) is Verdict.HELD


@pytest.mark.parametrize("clears", [False, True])
def test_tells_where_only_the_gradients_of_masters_are_replaced(
    tmp_path: Path, clears: bool, golden: Golden
) -> None:
    with recording(tmp_path / "run") as run:
        model = nn.Linear(4, 1).bfloat16()
        masters = [p.detach().float().requires_grad_() for p in model.parameters()]
        optimizer = torch.optim.SGD(masters, lr=0.05)
        for _ in range(20):
            if clears:
                model.zero_grad()
            model(torch.randn(8, 4).bfloat16()).pow(2).mean().backward()
            for master, parameter in zip(masters, model.parameters(), strict=True):
                assert parameter.grad is not None
                master.grad = parameter.grad.float()
            optimizer.step()
            with torch.no_grad():
                for master, parameter in zip(masters, model.parameters(), strict=True):
                    parameter.copy_(master)
    if clears:
        assert quiet("TC117", run.events) is Verdict.HELD
    else:
        finding = fires("TC117", run.events)
        golden(finding, numbers=False)
        assert mentions(finding, "opt0 (SGD)")
        assert mentions(finding, "zero_grad()")
