"""TC922: a layer at several places."""

from __future__ import annotations

import pytest

from tests.checking import fires, net, quiet
from traincheck.schema.apis import Families
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict

LINEAR = "torch.nn.modules.linear.Linear.forward"
LSTM = "torch.nn.modules.rnn.LSTM.forward"


def called(
    times: int, *, forwards: int = 1, again: bool = False, api: str = LINEAR, training: bool = True
) -> list[Event]:
    """Steps with so many calls in a forward; again: computed once more in the backward."""
    trace = net()
    layer = {"family": Families.MODULE, "module": "Net.shared", "training": training}
    for _ in range(4):
        trace.begin_step().zero_grad()
        for _ in range(forwards):
            for _ in range(times):
                trace.call(api, **layer)
            trace.forward()
        if again:
            trace.call(api, **layer)
        trace.backward().optimizer_step()
    return trace.build()


BROKEN = called(2)


def test_fires_on_two_calls_in_one_forward() -> None:
    finding = fires("TC922", BROKEN)
    assert (finding.subject.module, finding.first_step) == ("Net.shared", 2)
    assert (finding.severity, finding.violations) == ("info", 1)


@pytest.mark.parametrize(
    "events",
    [
        called(1),
        called(1, forwards=2),
        called(1, again=True),
        called(2, training=False),
        called(2, api=LSTM),
    ],
    ids=["once", "several forwards", "checkpointing", "evaluation", "recurrent"],
)
def test_quiet_on_others(events: list[Event]) -> None:
    assert quiet("TC922", events) in (Verdict.HELD, Verdict.NOT_TRIGGERED)
