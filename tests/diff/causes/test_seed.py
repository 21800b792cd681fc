"""The row "seed": another seed, or one on one side."""

from __future__ import annotations

from tests.diff.run_pairs import Compare, edited, numbered, of, training, without
from traincheck.schema.events import Event, RngEvent

SEEDED = of("rng", 0, change="seed")


def test_fires_on_another_seed(compare: Compare) -> None:
    b = edited(training(), SEEDED, seed=1, fingerprint="xxh3:" + "1" * 32)
    found = compare(training(), b)
    assert found.cause is not None
    assert found.cause.code == "seed"
    assert "0 in A and 1 in B" in found.cause.text


def test_fires_on_a_seed_of_one_run(compare: Compare) -> None:
    found = compare(training(), without(training(), SEEDED))
    assert found.cause is not None
    assert found.cause.code == "seed"
    assert "A only" in found.cause.text


def test_quiet_where_the_state_differs_after_one_seed(compare: Compare) -> None:
    b = edited(training(), of("rng", 1, change="state"), fingerprint="xxh3:" + "2" * 32)
    found = compare(training(), edited(b, of("batch", 2), indices=(5, 6, 7)))
    assert found.cause is not None
    assert found.cause.code != "seed"


def started(events: list[Event], state: str) -> list[Event]:
    """The run, with the generator of Python as it begins, and after a draw."""
    states = [
        RngEvent(*events[0].header, source="python", fingerprint=f"xxh3:{text:>032}", moment=moment)
        for moment, text in (("start", state), ("loader", f"{state}0"))
    ]
    return numbered([events[0], *states, *events[1:]])


def test_fires_on_a_generator_without_a_seed(compare: Compare) -> None:
    b = edited(started(training(), "2"), of("batch", 0), indices=(5, 6, 7))
    found = compare(started(training(), "1"), b)
    assert found.cause is not None
    assert found.cause.code == "not-seeded"
    assert "random.seed(0)" in found.cause.fix


def test_quiet_about_a_start_that_a_seed_replaces(compare: Compare) -> None:
    runs = [started(training(), state) for state in "12"]
    a, b = (edited(run, SEEDED, source="python") for run in runs)
    found = compare(a, edited(b, of("batch", 0), indices=(5, 6, 7)))
    assert found.first is not None
    assert found.first.phase == "batch"


def test_quiet_about_a_start_that_is_written_after_its_seed(compare: Compare) -> None:
    def run(state: str) -> list[Event]:
        events = edited(training(), SEEDED, source="python")
        at = next(number for number, event in enumerate(events) if SEEDED(event)) + 1
        began = started(events[:1], state)[1].replace(step=0)
        drawn = [event.replace(source="python") for event in started(events[:1], "3")[2:]]
        return numbered([*events[:at], began, *drawn, *events[at:]])

    found = compare(run("1"), run("2"))
    assert found.same
    assert not found.notes
    found = compare(run("1"), edited(run("2"), of("batch", 0), indices=(5, 6, 7)))
    assert found.first is not None
    assert found.first.phase == "batch"
