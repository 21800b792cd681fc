"""TC303: dropout that ignores evaluation mode."""

from __future__ import annotations

from typing import Any

from tests.checking import fires, net, quiet
from tests.golden import Golden, mentions
from tests.rules.window import attention, dropout, forward
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict


def loop(training: dict[str, Any], evaluating: dict[str, Any]) -> list[Event]:
    trace = net()
    for step in range(4):
        forward(trace.begin_step().zero_grad(), training).backward().optimizer_step()
        if step >= 1:
            forward(trace, evaluating, mode=False, grad=False)
    return trace.build()


BROKEN = loop(dropout("Net", on=True), dropout("Net", on=True, mode=False))


def test_fires_on_functional_dropout() -> None:
    finding = fires("TC303", BROKEN)
    assert (finding.first_step, finding.violations) == (1, 1)
    assert finding.subject.module == "Net"
    assert finding.stage == "eval"


def test_fires_on_attention(golden: Golden) -> None:
    wrong = attention("Net.fc1", p=0.1, mode=False)
    finding = fires("TC303", loop(attention("Net.fc1", p=0.1, mode=True), wrong))
    assert finding.subject.module == "Net.fc1"
    golden(finding)
    assert mentions(finding, "scaled_dot_product_attention()", "p=0")


def test_fires_on_a_layer_made_in_forward(golden: Golden) -> None:
    """It is in training mode, always, and hangs nowhere below the model."""
    new_layer = dropout(None, on=True)
    finding = fires("TC303", loop(new_layer, new_layer))
    assert (finding.subject.module, finding.first_step) == ("Net", 1)
    golden(finding)
    assert mentions(finding, "eval()")


def test_quiet_on_a_layer_made_in_forward_by_the_mode() -> None:
    events = loop(dropout(None, on=True), dropout("Net", on=False))
    assert quiet("TC303", events) is Verdict.HELD


def test_quiet_when_it_follows_the_mode() -> None:
    assert quiet("TC303", loop(dropout("Net", on=True), dropout("Net", on=False))) is Verdict.HELD
    events = loop(attention("Net", p=0.1, mode=True), attention("Net", p=0.0, mode=False))
    assert quiet("TC303", events) is Verdict.NOT_TRIGGERED


def test_quiet_on_monte_carlo_dropout() -> None:
    events = loop(dropout("Net.drop", on=True), dropout("Net.drop", on=True, mode=True))
    assert quiet("TC303", events) is Verdict.NOT_TRIGGERED


def test_quiet_on_a_module_that_only_drops() -> None:
    events = loop(dropout("Net.always", on=True), dropout("Net.always", on=True, mode=False))
    assert quiet("TC303", events) is Verdict.HELD
