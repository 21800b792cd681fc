"""The row "statistics": a buffer differs."""

from __future__ import annotations

from tests.diff.run_pairs import Compare, new_value, state, training


def test_fires_on_running_statistics(compare: Compare) -> None:
    b = new_value(training(), state("buffer", 2, "Net.bn.running_var"))
    found = compare(training(), b)
    assert found.cause is not None
    assert found.cause.code == "running-statistics"


def test_quiet_where_a_parameter_differs_too(compare: Compare) -> None:
    b = new_value(training(), state("buffer", 2, "Net.bn.running_var"))
    found = compare(training(), new_value(b, state("parameter", 2)))
    assert found.cause is not None
    assert found.cause.code == "written-outside"
