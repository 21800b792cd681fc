"""The row "states": the state of the optimizer is that of others."""

from __future__ import annotations

from tests.diff.run_pairs import Compare, edited, new_value, state, training
from traincheck.schema.events import Event, OptimizerEvent, StateEvent

FIRST, OTHER = "Net.fc1.weight/exp_avg", "Net.fc2.weight/exp_avg"


def reordered() -> list[Event]:
    """A run whose optimizer holds its parameters in another order."""
    events = training()
    for index, event in enumerate(events):
        if isinstance(event, OptimizerEvent):
            groups = tuple(
                group.replace(params=group.params[::-1], ids=group.ids[::-1])
                for group in event.groups
            )
            events[index] = event.replace(groups=groups)
    return events


def test_fires_on_another_order_of_parameters(compare: Compare) -> None:
    found = compare(training(), new_value(reordered(), state("optimizer_state", 2, FIRST)))
    assert found.cause is not None
    assert found.cause.code == "parameter-order"
    assert "Net.fc1.weight in A" in found.cause.details[0]


def test_fires_on_the_value_of_another_name(compare: Compare) -> None:
    a = training()
    other = next(e for e in a if state("optimizer_state", 1, OTHER)(e))
    assert isinstance(other, StateEvent)
    found = compare(a, edited(a, state("optimizer_state", 2, FIRST), summary=other.summary))
    assert found.cause is not None
    assert found.cause.code == "state-of-another"
    assert f"{OTHER} in A after step 1" in found.cause.details[0]


def test_quiet_where_order_and_value_are_known(compare: Compare) -> None:
    found = compare(training(), new_value(training(), state("optimizer_state", 2, FIRST)))
    assert found.cause is not None
    assert found.cause.code == "state-update"
