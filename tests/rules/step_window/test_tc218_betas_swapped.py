"""TC218: betas that were exchanged."""

from __future__ import annotations

import pytest

from tests.checking import fires, net, quiet
from tests.golden import mentions
from traincheck.schema.findings import Verdict

BROKEN = net(betas=[0.999, 0.9]).steps(2).build()


def test_fires_when_the_optimizer_is_made() -> None:
    finding = fires("TC218", BROKEN)
    assert finding.violations == 1
    assert mentions(finding, "betas=(0.999, 0.9)", "Adam")


@pytest.mark.parametrize(
    "betas", [[0.9, 0.999], [0.5, 0.5], [0.9, 0.8], [0.99, 0.98], [0.98, 0.98]]
)
def test_quiet_on_others(betas: list[float]) -> None:
    assert quiet("TC218", net(betas=betas).steps(2).build()) is Verdict.HELD


def test_quiet_on_optimizers_without() -> None:
    assert quiet("TC218", net().steps(2).build()) is Verdict.NOT_TRIGGERED
