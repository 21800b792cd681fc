"""TC109: statistics of a frozen batch normalization."""

from __future__ import annotations

from tests.builders import MLP_BN, TraceBuilder
from tests.checking import fires, quiet
from tests.rules.window import forward, norm
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict


def loop(*, frozen: bool, on: bool) -> list[Event]:
    names = ["Net.bn.weight", "Net.bn.bias"] if frozen else []
    trace = TraceBuilder().process().model("Net", MLP_BN, frozen=names).optimizer()
    for _ in range(4):
        forward(trace.begin_step().zero_grad(), norm("Net.bn", on=on)).backward().optimizer_step()
    return trace.build()


BROKEN = loop(frozen=True, on=True)


def test_fires_in_training_mode() -> None:
    finding = fires("TC109", BROKEN)
    assert (finding.first_step, finding.severity) == (0, "info")
    assert finding.variables == ("Net.bn.running_mean",)


def test_quiet_in_evaluation_mode_or_when_trained() -> None:
    assert quiet("TC109", loop(frozen=True, on=False)) is Verdict.HELD
    assert quiet("TC109", loop(frozen=False, on=True)) is Verdict.HELD
