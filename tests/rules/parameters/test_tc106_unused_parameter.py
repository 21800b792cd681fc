"""TC106: parameters that take no part."""

from __future__ import annotations

from tests.builders import LINEAR, MLP, TraceBuilder, emptied
from tests.checking import BY_CODE, Alone, fires, net, quiet
from traincheck.schema.findings import Verdict

AUX = ["Net.aux.weight", "Net.aux.bias"]
WITH_AUX = {**MLP, "aux.weight": LINEAR, "aux.bias": LINEAR}


def loop(steps: int = 4, *, frozen: bool = False) -> TraceBuilder:
    trace = TraceBuilder().process()
    trace.model("Net", WITH_AUX, frozen=AUX if frozen else ()).optimizer()
    return trace.steps(steps, no_gradient=AUX)


BROKEN = loop().build()


def test_fires_at_the_end() -> None:
    finding = fires("TC106", BROKEN)
    assert finding.first_step == 0
    assert finding.severity == "info"
    assert finding.variables == tuple(sorted(AUX))


def test_fires_on_what_is_not_called() -> None:
    events = [e for e in BROKEN if not (e.kind == "call" and e.module == "Net.aux")]  # type: ignore[union-attr]
    assert fires("TC106", events).variables == tuple(sorted(AUX))


def test_quiet_when_gradients_arrive_once() -> None:
    trace = loop(3).step().steps(2, no_gradient=AUX)
    assert quiet("TC106", trace.build()) is Verdict.HELD
    assert quiet("TC106", net().steps(4).build()) is Verdict.HELD


def test_quiet_on_frozen_parameters_and_short_runs() -> None:
    assert quiet("TC106", loop(frozen=True).build()) is Verdict.HELD
    assert quiet("TC106", loop(2).build()) is Verdict.HELD


def test_quiet_on_what_is_empty_as_fsdp_leaves_it() -> None:
    assert quiet("TC106", emptied(BROKEN, AUX)) is Verdict.HELD


def test_quiet_when_steps_were_not_recorded() -> None:
    assert quiet("TC106", loop(3).skipped_steps(2).build()) is Verdict.HELD


def test_told_once_while_a_long_run_goes_on() -> None:
    rule = type(BY_CODE["TC106"])(certain=5)  # type: ignore[call-arg]
    monitor = Alone(rule)
    events = loop(8).build()
    told = [event.step for event in events for _ in monitor.observe(event)]
    assert told == [4, 4]
    assert list(monitor.finish()) == []
