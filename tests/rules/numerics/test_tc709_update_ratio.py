"""TC709: steps as large as the weights."""

from __future__ import annotations

from tests.builders import TraceBuilder
from tests.checking import fires, net, quiet
from tests.rules.numbers import norm, numbered
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict


def run(*norms: float | None, warm_up: bool = False, factor: float = 1.0) -> list[Event]:
    def size(name: str, step: int):  # type: ignore[no-untyped-def]
        found = norms[step + 1]
        return None if found is None else norm(found)

    trace = net()
    for step in range(len(norms) - 1):
        trace.step()
        if warm_up:
            trace.change_groups(lr=1e-3 * (step + 2))
        elif factor != 1:
            trace.change_groups(lr=1e-3 * factor ** (step + 1))
    return numbered(
        trace.build(),
        parameter=size,
        first=lambda name, step: norm(norms[0] or 0.0),
    )


BROKEN = run(1, 1.1, 3, 9, 27, 81)


def test_fires_at_three_in_a_row() -> None:
    finding = fires("TC709", BROKEN)
    assert finding.first_step == 1
    assert finding.variables == ("Net.fc1.weight", "Net.fc2.weight")


def test_quiet_on_single_large_steps() -> None:
    assert quiet("TC709", run(1, 3, 9, 9, 30, 90, 91)) is Verdict.HELD


def test_quiet_on_weights_that_begin_with_zeros() -> None:
    assert quiet("TC709", run(0, 0.01, 0.015, 0.02, 0.025)) is Verdict.HELD
    assert quiet("TC709", run(0, 0.01, 0.029, 0.056, 0.09, 0.13)) is Verdict.HELD  # by momentum


def test_fires_on_weights_that_begin_with_zeros_and_grow_ever_more() -> None:
    assert fires("TC709", run(0, 0.01, 0.1, 1, 10, 100, 1000)).first_step == 2


def test_quiet_while_a_rate_is_searched_for() -> None:
    assert quiet("TC709", run(1, 1.1, 3, 9, 27, 81, factor=1.3)) is Verdict.HELD
    assert fires("TC709", run(1, 1.1, 3, 9, 27, 81, factor=1.1))


def test_quiet_on_small_updates() -> None:
    assert quiet("TC709", run(1, 1.001, 1.002, 1.001, 1.003)) is Verdict.HELD


def test_norms_of_steps_apart_are_not_compared() -> None:
    assert quiet("TC709", run(1, None, 1, None, 3, None, 9, None, 27)) is Verdict.NOT_TRIGGERED


def test_quiet_on_weights_that_begin_as_good_as_zero_in_a_warm_up() -> None:
    """LayerScale: each step is larger than the one before, and than all there was."""
    tiny = 1e-6
    assert quiet("TC709", run(tiny, 0.001, 0.003, 0.006, 0.01, 0.015)) is Verdict.HELD
    assert fires("TC709", run(tiny, 0.001, 0.003, 0.03, 0.3, 3, 30)).first_step == 2


def test_quiet_on_a_scale_for_each_channel() -> None:
    grown = TraceBuilder().process().model("Net", {"gamma": (64, 1, 1)}).optimizer()
    events = numbered(
        grown.steps(5).build(),
        parameter=lambda name, step: norm(3.0 ** (step + 1)),
        first=lambda name, step: norm(1.0),
    )
    assert quiet("TC709", events) is Verdict.NOT_TRIGGERED


def test_quiet_on_weights_that_begin_with_zeros_while_the_rate_warms_up() -> None:
    norms = (0, 0.005, 0.014, 0.04, 0.12, 0.36, 0.4)
    assert quiet("TC709", run(*norms, warm_up=True)) is Verdict.HELD
    assert fires("TC709", run(*norms))
