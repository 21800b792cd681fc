"""TC107: updates of what was frozen."""

from __future__ import annotations

from tests.builders import TraceBuilder
from tests.checking import fires, net, quiet
from tests.golden import mentions
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict

BODY = ["Net.fc1.weight", "Net.fc1.bias"]


def loop(*, to_none: bool) -> list[Event]:
    trace = net().steps(2, set_to_none=False).begin_step().freeze(*BODY)
    return trace.steps(3, set_to_none=to_none).build()


BROKEN = loop(to_none=False)


def test_fires_while_a_gradient_is_left() -> None:
    finding = fires("TC107", BROKEN)
    assert finding.first_step == 3
    assert finding.variables == tuple(sorted(BODY))
    assert mentions(finding, "train.py:88")


def test_quiet_when_gradients_are_none() -> None:
    assert quiet("TC107", loop(to_none=True)) is not Verdict.VIOLATED


def test_quiet_on_what_is_frozen_for_the_update_of_another_optimizer() -> None:
    """A discriminator: unfrozen for its own update, frozen for that of the generator."""
    trace = TraceBuilder().process().model("Net")
    trace.optimizer(names=BODY).optimizer(names=["Net.fc2.weight", "Net.fc2.bias"])
    trace.steps(2, set_to_none=False)
    for _ in range(4):
        trace.begin_step().freeze(*BODY, frozen=False).zero_grad(set_to_none=False)
        trace.forward().backward().optimizer_step("opt0").freeze(*BODY)
        trace.optimizer_step("opt1").end_step()
    assert quiet("TC107", trace.build()) is not Verdict.VIOLATED


def test_quiet_on_training_and_on_what_was_frozen_first() -> None:
    assert quiet("TC107", net().steps(4, set_to_none=False).build()) is Verdict.NOT_TRIGGERED
    frozen = TraceBuilder().process().model("Net", frozen=BODY).optimizer().steps(4)
    assert quiet("TC107", frozen.build()) is Verdict.NOT_TRIGGERED
