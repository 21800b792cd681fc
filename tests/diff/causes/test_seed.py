"""The row "seed": another seed, or one on one side."""

from __future__ import annotations

from tests.diff.run_pairs import Compare, edited, of, training, without

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
