"""The row "contents": the same samples hold something else."""

from __future__ import annotations

from tests.diff.run_pairs import Compare, edited, of, training
from traincheck.schema.events import Event, MarkEvent

SECOND = of("batch", 2)
OTHER = ["1" * 16, "2" * 16, "3" * 16]


def with_worker(events: list[Event], start: str) -> list[Event]:
    """The run, with a worker whose generators begin in a state."""
    data = {"worker": 0, "workers": 2, "start": {"numpy": start}}
    mark = MarkEvent(*events[-1].header, text="worker", data=data)
    made = [events[0], mark.replace(time_ns=events[0].time_ns + 1, step=0), *events[1:]]
    return [event.replace(seq=seq) for seq, event in enumerate(made)]


def test_fires_on_other_contents(compare: Compare) -> None:
    found = compare(training(), edited(training(), SECOND, samples=OTHER))
    assert found.cause is not None
    assert found.cause.code == "contents"
    assert found.cause.details == ("3 of 3 rows differ",)


def test_fires_on_the_same_rows_in_another_order(compare: Compare) -> None:
    rows = [f"{6 + row:016x}" for row in (2, 0, 1)]
    found = compare(training(), edited(training(), SECOND, samples=rows))
    assert found.cause is not None
    assert found.cause.code == "listing-order"


def test_fires_on_another_number_of_workers(compare: Compare) -> None:
    a = edited(training(), SECOND, workers=2)
    found = compare(a, edited(a, SECOND, workers=4, samples=OTHER))
    assert found.cause is not None
    assert found.cause.code == "worker-number"


def test_fires_on_other_generators_of_workers(compare: Compare) -> None:
    a = with_worker(training(), "x")
    found = compare(a, edited(with_worker(training(), "y"), SECOND, samples=OTHER))
    assert found.cause is not None
    assert found.cause.code == "worker-seeds"
    assert "numpy of worker 0" in found.cause.details[0]


def test_quiet_about_workers_that_begin_alike(compare: Compare) -> None:
    a = with_worker(training(), "x")
    found = compare(a, edited(a, SECOND, samples=OTHER))
    assert found.cause is not None
    assert found.cause.code == "contents"
