"""TC116: a model in no optimizer that gets gradients for nothing."""

from __future__ import annotations

import pytest

from tests.builders import MLP, TraceBuilder
from tests.checking import fires, net, quiet
from tests.golden import Golden, mentions
from traincheck.schema.events import CheckpointEvent, Event
from traincheck.schema.findings import Verdict
from traincheck.schema.torch_api import Families

HEAD = {"weights": "__main__.Margin"}


def loaded() -> TraceBuilder:
    return net().add(CheckpointEvent, op="load_state_dict", target="Margin")


def loop(
    count: int = 9,
    *,
    frozen: bool = False,
    training: bool = True,
    trace: TraceBuilder | None = None,
) -> list[Event]:
    trace = trace or loaded()
    trace.model("Margin", HEAD, frozen=["Margin.weights"] if frozen else [])
    trace.train(training, "Margin")
    return trace.steps(count).build()


BROKEN = loop()


def test_fires_on_a_loss_with_weights_that_no_optimizer_holds(golden: Golden) -> None:
    finding = fires("TC116", BROKEN)
    assert (finding.first_step, finding.severity, finding.violations) == (0, "info", 1)
    assert finding.subject.module == "Margin"
    golden(finding)
    assert mentions(finding, "Margin.weights", "opt0 (Adam)")


@pytest.mark.parametrize("events", [loop(7), loop(frozen=True), loop(training=False)])
def test_quiet_on_short_runs_frozen_models_and_in_evaluation_mode(events: list[Event]) -> None:
    assert quiet("TC116", events) is Verdict.HELD


def test_quiet_when_an_optimizer_holds_it() -> None:
    both = TraceBuilder().process().model("Net", MLP).model("Margin", HEAD)
    assert quiet("TC116", both.optimizer().steps(9).build()) is Verdict.HELD


def test_quiet_when_its_gradients_are_cleared() -> None:
    trace = net().model("Margin", HEAD)
    for _ in range(9):
        trace.begin_step().zero_grad()
        trace.call("torch.nn.Module.zero_grad", family=Families.ZERO_GRAD, module="Margin")
        trace.forward().backward().optimizer_step()
    assert quiet("TC116", trace.build()) is Verdict.HELD


def test_quiet_on_a_model_that_begins_anew() -> None:
    assert quiet("TC116", loop(trace=net())) is Verdict.HELD
