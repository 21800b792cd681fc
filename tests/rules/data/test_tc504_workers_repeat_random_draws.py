"""TC504: workers that draw the same random numbers."""

from __future__ import annotations

import pytest

from tests.builders import TraceBuilder
from tests.checking import fires, quiet
from tests.golden import Golden, mentions
from tests.rules.workers import Drawn, run_with, worker
from traincheck.schema.findings import Verdict

BOTH = ("a", "b")
GLOBALS: Drawn = {"numpy": ("n", "n"), "torch": ("t", "t")}

BROKEN = run_with([worker(i, {"dataset.rng": BOTH, **GLOBALS}) for i in (0, 1)])


def test_fires_on_a_generator_that_the_dataset_owns(golden: Golden) -> None:
    finding = fires("TC504", BROKEN)
    assert (finding.first_step, finding.violations) == (0, 1)
    assert finding.variables == ("loader0",)
    assert mentions(finding, "dataset.rng")
    golden(finding)
    assert mentions(finding, 0, 1)


def test_fires_on_a_global_generator_once_for_all_epochs() -> None:
    workers = [worker(i, {"numpy": BOTH}, epoch=epoch) for epoch in (0, 1) for i in (0, 1)]
    finding = fires("TC504", run_with(workers, epochs=2))
    assert finding.violations == 1
    assert mentions(finding, "NumPy")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"dataset.rng": ("a", "b")}, {"dataset.rng": ("c", "d")}),
        ({"dataset.rng": ("a", "a")}, {"dataset.rng": ("a", "a")}),  # nothing is drawn
        ({"dataset.rng": ("a", "b")}, {"dataset.rng": ("a", "c")}),  # seeded by index
        ({}, {}),
    ],
)
def test_quiet_when_draws_differ(first: Drawn, second: Drawn) -> None:
    assert quiet("TC504", run_with([worker(0, first), worker(1, second)])) is Verdict.HELD


def test_quiet_on_evaluation_and_without_workers() -> None:
    workers = [worker(i, {"dataset.rng": BOTH}, loader="loader1") for i in (0, 1)]
    assert quiet("TC504", run_with(workers)) is Verdict.NOT_TRIGGERED
    assert quiet("TC504", run_with([])) is Verdict.NOT_TRIGGERED
    assert quiet("TC504", TraceBuilder().process().build()) is Verdict.NOT_TRIGGERED
