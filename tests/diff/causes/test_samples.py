"""The row "samples": the loader draws other samples."""

from __future__ import annotations

from tests.diff.run_pairs import Compare, edited, of, training

SECOND = of("batch", 2)


def test_fires_on_a_shuffle_from_another_state(compare: Compare) -> None:
    found = compare(training(), edited(training(), SECOND, indices=(50, 51, 52)))
    assert found.cause is not None
    assert found.cause.code == "draws-before-loader"


def test_fires_on_another_epoch_of_the_sampler(compare: Compare) -> None:
    a = edited(training(), SECOND, sampler_epoch=1)
    found = compare(a, edited(a, SECOND, sampler_epoch=0, indices=(50, 51, 52)))
    assert found.cause is not None
    assert found.cause.code == "sampler-epoch"


def test_fires_on_another_batch_size(compare: Compare) -> None:
    found = compare(training(), edited(training(), SECOND, indices=(6, 7), drawn=2))
    assert found.cause is not None
    assert found.cause.code == "sampler"
    assert "batch size" in found.cause.text


def test_says_where_the_other_run_has_the_batch(compare: Compare) -> None:
    rows = [f"{row:016x}" for row in range(3)]
    found = compare(training(), edited(training(), SECOND, indices=(0, 1, 2), samples=rows))
    assert found.cause is not None
    assert found.cause.code == "replayed"
    assert "at step 0" in found.cause.details[0]


def test_quiet_where_the_indices_agree(compare: Compare) -> None:
    found = compare(training(), edited(training(), SECOND, samples=["1" * 16, "2" * 16, "3" * 16]))
    assert found.cause is not None
    assert found.cause.code == "contents"
