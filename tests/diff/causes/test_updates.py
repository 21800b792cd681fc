"""The row "updates": the parameters differ after the same gradients."""

from __future__ import annotations

from tests.diff.run_pairs import Compare, new_value, state, training
from traincheck.schema.events import Event, OptimizerEvent


def with_flag(**flags: bool) -> list[Event]:
    """A run whose optimizer computes its updates in some way."""
    events = training()
    for index, event in enumerate(events):
        if isinstance(event, OptimizerEvent):
            groups = tuple(g.replace(hyper={**g.hyper, **flags}) for g in event.groups)
            events[index] = event.replace(groups=groups)
    return events


def test_fires_on_a_write_outside_of_the_optimizer(compare: Compare) -> None:
    found = compare(training(), new_value(training(), state("parameter", 2)))
    assert found.cause is not None
    assert found.cause.code == "written-outside"


def test_fires_on_another_computation_of_the_update(compare: Compare) -> None:
    b = new_value(with_flag(fused=True), state("parameter", 2), 2.0000001)
    found = compare(with_flag(foreach=True), b)
    assert found.cause is not None
    assert found.cause.code == "update-arithmetic"
    assert "fused=True in B" in found.cause.text


def test_quiet_about_the_computation_where_the_difference_is_large(compare: Compare) -> None:
    b = new_value(with_flag(fused=True), state("parameter", 2), 3.0)
    found = compare(with_flag(foreach=True), b)
    assert found.cause is not None
    assert found.cause.code == "written-outside"
