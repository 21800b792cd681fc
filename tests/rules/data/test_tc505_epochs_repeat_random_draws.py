"""TC505: workers that begin each epoch with the same random numbers."""

from __future__ import annotations

import pytest

from tests.checking import fires, quiet
from tests.golden import Golden, mentions
from tests.rules.workers import Drawn, run_with, worker
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict


def epochs(*drawn: tuple[Drawn, Drawn]) -> list[Event]:
    """An epoch each; what its two workers drew."""
    workers = [worker(i, d, epoch=e) for e, both in enumerate(drawn) for i, d in enumerate(both)]
    return run_with(workers, epochs=len(drawn))


OWN: tuple[Drawn, Drawn] = ({"torch": ("a", "b")}, {"torch": ("c", "d")})
OTHER: tuple[Drawn, Drawn] = ({"torch": ("e", "f")}, {"torch": ("g", "h")})

BROKEN = epochs(OWN, OWN, OWN)


def test_fires_at_the_second_epoch(golden: Golden) -> None:
    finding = fires("TC505", BROKEN)
    assert (finding.first_step, finding.violations) == (3, 1)
    golden(finding)
    assert mentions(finding, 0, 1)


@pytest.mark.parametrize(
    "drawn",
    [
        (OWN, OTHER),
        (({"torch": ("a", "a")}, {}), ({"torch": ("a", "a")}, {})),
        (({"r": ("a", "b")}, {"r": ("a", "b")}), ({"r": ("a", "b")}, {"r": ("a", "b")})),  # TC504
    ],
)
def test_quiet_when_epochs_differ_or_workers_do_not(
    drawn: tuple[tuple[Drawn, Drawn], ...],
) -> None:
    assert quiet("TC505", epochs(*drawn)) is Verdict.HELD


def test_quiet_on_one_epoch() -> None:
    assert quiet("TC505", epochs(OWN)) is Verdict.NOT_TRIGGERED
