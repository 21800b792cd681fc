"""TC507: a batch whose samples are all in one row."""

from __future__ import annotations

from typing import Any

import pytest

from tests.checking import fires, quiet
from tests.golden import mentions
from tests.rules.batches import leaf, run_on
from traincheck.schema.findings import Verdict


def batch(pixels: tuple[int, ...], ids: tuple[int, ...], drawn: int = 5) -> dict[str, Any]:
    return {
        "leaves": {"batch.pixels": leaf(shape=pixels), "batch.ids": leaf(shape=ids)},
        "drawn": drawn,
        "indices": list(range(drawn)),
    }


BROKEN = run_on([batch((1, 5, 3, 4, 4), (1, 12))] * 2)


def test_fires_at_the_first_batch() -> None:
    finding = fires("TC507", BROKEN)
    assert (finding.first_step, finding.violations) == (0, 1)
    assert mentions(finding, "[1, 5, 3, 4, 4]")


@pytest.mark.parametrize(
    "healthy",
    [
        batch((5, 3, 4, 4), (5, 12)),
        batch((1, 60), (1, 60)),  # packed
        batch((5, 3, 4, 4), (1, 12)),
        batch((1, 5, 4), (1, 5, 7)),
    ],
)
def test_quiet_on_rows_and_on_packing(healthy: dict[str, Any]) -> None:
    assert quiet("TC507", run_on([healthy])) is Verdict.HELD


def test_quiet_when_it_is_not_known_what_was_drawn() -> None:
    unknown = batch((1, 5, 3, 4, 4), (1, 12), drawn=0)
    assert quiet("TC507", run_on([unknown])) is Verdict.NOT_TRIGGERED
