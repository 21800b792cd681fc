"""TC111: forward passes in evaluation that write to parameters."""

from __future__ import annotations

from tests.checking import fires, net, quiet
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict


def evaluated(*names: str, times: int = 2) -> list[Event]:
    """Steps with an evaluation after each, which writes to ``names``."""
    trace = net()
    for _ in range(times):
        trace.step()
        trace.mark("evaluated", model="Net", values={"Net.fc1.weight": "xxh3-128:1"})
        trace.train(False).forward(grad=False)
        if names:
            trace.mark("evaluation wrote", model="Net", names=list(names), parameters=len(names))
        trace.train(True)
    return trace.build()


BROKEN = evaluated("Net.fc1.weight")


def test_fires_at_the_first_evaluation_that_writes() -> None:
    finding = fires("TC111", BROKEN)
    assert (finding.first_step, finding.violations) == (0, 1)
    assert finding.variables == ("Net.fc1.weight",)


def test_all_that_is_written_is_one_finding() -> None:
    finding = fires("TC111", evaluated("Net.fc1.weight", "Net.fc2.weight"))
    assert finding.variables == ("Net.fc1.weight", "Net.fc2.weight")


def test_quiet_when_nothing_is_written() -> None:
    assert quiet("TC111", evaluated()) is Verdict.HELD
