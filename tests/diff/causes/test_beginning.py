"""The row "beginning": the parameters differ before the first batch."""

from __future__ import annotations

from tests.diff.run_pairs import Choose, Compare, edited, new_value, of, state, training
from traincheck.schema.events import CheckpointEvent, Event


def first(name: str) -> Choose:
    """Chooses the initial value of a parameter."""
    return of("state", 0, role="parameter", name=name, change="new")


def with_load(events: list[Event], path: str) -> list[Event]:
    """The run, with a file that is loaded at its start."""
    load = CheckpointEvent(*events[1].header, op="load", path=path, where="train.py:9")
    made = [events[0], load, *events[1:]]
    return [event.replace(seq=seq) for seq, event in enumerate(made)]


def test_fires_on_other_initial_values(compare: Compare) -> None:
    found = compare(training(), new_value(training(), first("Net.fc1.weight")))
    assert found.first is not None
    assert found.first.is_opening
    assert found.first.name == "Net.fc1.weight"
    assert found.cause is not None
    assert found.cause.code == "initial-state"


def test_fires_on_values_under_other_names(compare: Compare) -> None:
    a = training()
    names = "Net.fc1.weight", "Net.fc2.weight"
    values = [next(e.summary for e in a if first(name)(e)) for name in names]  # type: ignore[union-attr]
    b = edited(edited(a, first(names[0]), summary=values[1]), first(names[1]), summary=values[0])
    found = compare(a, b)
    assert found.cause is not None
    assert found.cause.code == "built-otherwise"


def test_fires_on_other_files(compare: Compare) -> None:
    b = with_load(new_value(training(), first("Net.fc1.weight")), "run2/model.pt")
    found = compare(with_load(training(), "run1/weights.pt"), b)
    assert found.cause is not None
    assert found.cause.code == "loaded"
    assert "weights.pt" in found.cause.text


def test_quiet_about_a_file_that_both_load(compare: Compare) -> None:
    b = with_load(new_value(training(), first("Net.fc1.weight")), "run1/weights.pt")
    found = compare(with_load(training(), "run1/weights.pt"), b)
    assert found.cause is not None
    assert found.cause.code == "initial-state"


def test_quiet_where_a_later_step_differs(compare: Compare) -> None:
    found = compare(training(), new_value(training(), state("parameter", 2)))
    assert found.cause is not None
    assert found.cause.code == "written-outside"
