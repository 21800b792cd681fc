"""TC305: spectral normalization that is evaluated before it was trained."""

from __future__ import annotations

from tests.builders import LINEAR, TraceBuilder
from tests.checking import fires, quiet
from tests.rules.window import forward
from traincheck.schema.events import CheckpointEvent, Event
from traincheck.schema.findings import Verdict


def loop(*, first: bool, legacy: bool = True, loads: bool = False) -> list[Event]:
    names = {"fc.bias": LINEAR, ("fc.weight_orig" if legacy else "fc.weight"): LINEAR}
    buffers = {"fc.weight_u": LINEAR} if legacy else {}
    trace = TraceBuilder().process().model("Net", names, buffers=buffers).optimizer()
    if loads:
        trace.add(CheckpointEvent, op="load_state_dict", target="Net", entries=3)
    for step in range(3):
        if not step and first:
            forward(trace, mode=False, grad=False)
        forward(trace.begin_step().zero_grad()).backward().optimizer_step()
        forward(trace, mode=False, grad=False)
    return trace.build()


BROKEN = loop(first=True)


def test_fires_when_evaluation_comes_first() -> None:
    finding = fires("TC305", BROKEN)
    assert (finding.first_step, finding.violations) == (0, 1)
    assert finding.variables == ("Net.fc.weight_u",)


def test_quiet_when_training_comes_first() -> None:
    assert quiet("TC305", loop(first=False)) is Verdict.HELD


def test_quiet_without_such_layers_or_with_a_state() -> None:
    assert quiet("TC305", loop(first=True, legacy=False)) is Verdict.HELD
    assert quiet("TC305", loop(first=True, loads=True)) is Verdict.HELD
