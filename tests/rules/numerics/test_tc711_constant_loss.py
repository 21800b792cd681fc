"""TC711: the same loss at every step."""

from __future__ import annotations

from collections.abc import Callable

from tests.checking import fires, net, quiet
from tests.golden import mentions
from tests.rules.numbers import numbered
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict


def run(loss: Callable[[int], float | None], steps: int = 25, lr: float = 1e-3) -> list[Event]:
    return numbered(net(lr=lr).steps(steps).build(), loss=loss)


BROKEN = run(lambda step: 2.302585)


def test_fires_after_twenty_steps() -> None:
    finding = fires("TC711", BROKEN)
    assert (finding.first_step, finding.violations) == (0, 1)
    assert mentions(finding, 2.302585)
    assert quiet("TC711", run(lambda step: 2.302585, steps=19)) is Verdict.NOT_TRIGGERED


def test_quiet_on_a_loss_that_becomes_constant() -> None:
    assert quiet("TC711", run(lambda step: 2.3 if step == 0 else 0.01)) is Verdict.HELD


def test_quiet_on_a_loss_of_zero() -> None:
    assert quiet("TC711", run(lambda step: 0.0)) is Verdict.HELD


def test_quiet_at_a_learning_rate_of_zero() -> None:
    assert quiet("TC711", run(lambda step: 2.3, lr=0.0)) is Verdict.NOT_TRIGGERED


def test_quiet_where_the_loss_cannot_be_read() -> None:
    assert quiet("TC711", run(lambda step: None)) is Verdict.NOT_TRIGGERED
