"""TC212: two backward passes over the same loss."""

from __future__ import annotations

from tests.checking import fires, net, quiet
from tests.golden import mentions
from tests.rules.window import LOSS
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict
from traincheck.schema.torch_api import Families


def loop(steps: int = 3, *, second: float | None, clears: bool = False) -> list[Event]:
    trace = net()
    for step in range(steps):
        trace.begin_step().zero_grad().forward().backward()
        value = 0.5 + step
        _set_loss(trace.events, value, retain=True)
        if clears:
            trace.zero_grad()
        if second is not None:
            trace.backward()
            _set_loss(trace.events, value + second, retain=False)
        trace.optimizer_step()
    return trace.build()


def _set_loss(events: list[Event], value: float, *, retain: bool) -> None:
    args = {"tensors": {**LOSS, "value": value}, "retain_graph": retain}
    events[-1] = events[-1].replace(args=args)  # type: ignore[call-arg]


BROKEN = loop(second=0.0)


def test_fires_on_the_same_value() -> None:
    finding = fires("TC212", BROKEN)
    assert (finding.first_step, finding.violations) == (0, 1)
    assert finding.subject.api == Families.BACKWARD
    assert mentions(finding, "train.py:84")


def test_quiet_on_two_losses() -> None:
    assert quiet("TC212", loop(second=0.25)) is Verdict.HELD


def test_quiet_on_one_backward_or_gradients_cleared_between() -> None:
    assert quiet("TC212", loop(second=None)) is Verdict.HELD
    assert quiet("TC212", loop(second=0.0, clears=True)) is Verdict.HELD
