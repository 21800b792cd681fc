"""TC109: statistics of a frozen batch normalization."""

from __future__ import annotations

from tests.builders import MLP_BN, TraceBuilder
from tests.checking import fires, quiet
from tests.rules.window import forward, norm
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict


def loop(*, frozen: bool, on: bool, averaged: bool = False) -> list[Event]:
    names = ["Net.bn.weight", "Net.bn.bias"] if frozen else []
    trace = TraceBuilder().process().model("Net", MLP_BN, frozen=names).optimizer()
    for _ in range(4):
        forward(trace.begin_step().zero_grad(), norm("Net.bn", on=on)).backward().optimizer_step()
        if averaged:
            trace.write(*names)
    return trace.build()


BROKEN = loop(frozen=True, on=True)


def test_fires_in_training_mode() -> None:
    finding = fires("TC109", BROKEN)
    assert (finding.first_step, finding.severity) == (0, "info")
    assert finding.variables == ("Net.bn.running_mean",)


def test_quiet_on_an_average_of_the_trained_weights() -> None:
    assert quiet("TC109", loop(frozen=True, on=True, averaged=True)) is Verdict.HELD


def turns(trained_until: int) -> list[Event]:
    """The norm is frozen in one half of each step, and trained in the other, so long."""
    names = ["Net.bn.weight", "Net.bn.bias"]
    trace = TraceBuilder().process().model("Net", MLP_BN).optimizer()
    for step in range(24):
        trace.begin_step().zero_grad()
        if step < trained_until:
            trace.freeze(*names, frozen=False)
            forward(trace, norm("Net.bn", on=True)).backward().optimizer_step()
        trace.freeze(*names)
        forward(trace, norm("Net.bn", on=True)).backward(skip=names).optimizer_step()
    return trace.build()


def test_what_is_trained_in_turns_is_not_frozen() -> None:
    assert quiet("TC109", turns(24)) is Verdict.HELD
    assert fires("TC109", turns(4)).first_step == 19


def test_quiet_in_evaluation_mode_or_when_trained() -> None:
    assert quiet("TC109", loop(frozen=True, on=False)) is Verdict.HELD
    assert quiet("TC109", loop(frozen=False, on=True)) is Verdict.HELD
