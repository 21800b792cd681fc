"""TC315: cross_entropy over one class."""

from __future__ import annotations

import pytest

from tests.checking import fires, quiet
from tests.golden import mentions
from tests.rules.loss_runs import loss_run, tensor
from traincheck.schema.findings import Verdict

LABELS = tensor((64,), "int64")

BROKEN = loss_run("cross_entropy", input=tensor((64, 1)), target=LABELS)


def test_fires_on_one_output() -> None:
    finding = fires("TC315", BROKEN)
    assert finding.first_step == 0
    assert mentions(finding, "[64, 1]")


@pytest.mark.parametrize("shape", [(64, 2), (64, 10, 1), (10,), (1, 5)])
def test_quiet_on_several(shape: tuple[int, ...]) -> None:
    events = loss_run("cross_entropy", input=tensor(shape), target=LABELS)
    assert quiet("TC315", events) is Verdict.HELD
