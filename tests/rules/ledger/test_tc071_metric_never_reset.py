"""TC071: a metric of the evaluation that goes on from the last one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.checking import fires, net, quiet
from tests.golden import mentions
from tests.rules.ledger.metrics import epochs
from tests.rules.ledger.programs import recorded
from traincheck.schema.findings import Verdict
from traincheck.schema.observations.data import MetricUse

ACCURACY = "torchmetrics.classification.accuracy.MulticlassAccuracy"
USE = MetricUse("metric0", ACCURACY, 0, 10, 1, None, "train.py:40", "train.py:44")
BROKEN = net().steps(2).mark(USE.text, **USE.data()).steps(2).build()


def test_fires_on_a_second_evaluation() -> None:
    finding = fires("TC071", BROKEN)
    assert (finding.first_step, finding.subject.variable, finding.violations) == (1, "metric0", 1)
    assert mentions(finding, 10, 2, "train.py:40", "train.py:44")


def test_quiet_on_the_first_evaluation() -> None:
    use = MetricUse("metric0", ACCURACY, 0, 10)
    assert quiet("TC071", net().steps(2).mark(use.text, **use.data()).build()) is Verdict.HELD


def test_fires_on_a_real_program(tmp_path: Path) -> None:
    finding = fires("TC071", recorded(tmp_path, lambda: epochs(shares=False, resets="never")))
    assert mentions(finding, 4, 2)


@pytest.mark.parametrize(
    "options",
    [
        {"shares": False, "resets": "end"},
        {"shares": False, "resets": "phase"},
        {"shares": False, "resets": "end", "calls": True},
    ],
)
def test_quiet_where_it_is_reset(tmp_path: Path, options: dict[str, Any]) -> None:
    events = recorded(tmp_path, lambda: epochs(**options))
    assert quiet("TC071", events) is Verdict.HELD
