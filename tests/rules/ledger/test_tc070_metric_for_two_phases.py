"""TC070: one metric that collects training and evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.checking import fires, net, quiet
from tests.golden import mentions
from tests.rules.ledger.metrics import epochs
from tests.rules.ledger.programs import recorded
from traincheck.schema.findings import Verdict
from traincheck.schema.observations.data import MetricUse

ACCURACY = "torchmetrics.classification.accuracy.MulticlassAccuracy"
USE = MetricUse("metric0", ACCURACY, 10, 5, 0, "train.py:30", "train.py:40", "train.py:44")
BROKEN = net().steps(2).mark(USE.text, **USE.data()).steps(2).build()


def test_fires_on_a_mixed_metric() -> None:
    finding = fires("TC070", BROKEN)
    assert (finding.first_step, finding.subject.variable, finding.violations) == (1, "metric0", 1)
    assert mentions(finding, 10, 5, "train.py:30", "train.py:40", "train.py:44")


def test_quiet_on_a_counter() -> None:
    use = MetricUse("metric0", "torchmetrics.aggregation.SumMetric", 10, 5)
    assert quiet("TC070", net().steps(2).mark(use.text, **use.data()).build()) is Verdict.HELD


def test_fires_on_a_real_program(tmp_path: Path) -> None:
    finding = fires("TC070", recorded(tmp_path, lambda: epochs(shares=True, resets="end")))
    assert finding.stage == "eval"
    assert mentions(finding, "MulticlassAccuracy", 4, 2)


@pytest.mark.parametrize(
    "options",
    [
        {"shares": False, "resets": "end"},
        {"shares": True, "resets": "phase"},
        {"shares": False, "resets": "end", "calls": True},
    ],
    ids=["two objects", "reset between", "forward"],
)
def test_quiet_on_healthy_programs(tmp_path: Path, options: dict[str, Any]) -> None:
    events = recorded(tmp_path, lambda: epochs(**options))
    assert quiet("TC070", events) is Verdict.HELD


def test_training_is_the_same(tmp_path: Path) -> None:
    """Weights, results of metrics and random state, with and without recording."""

    def state() -> tuple[list[float], list[float]]:
        torch.manual_seed(3)
        values = epochs(shares=True, resets="end")
        return values, torch.rand(2).tolist()

    plain, seen = state(), []
    recorded(tmp_path, lambda: seen.append(state()))
    assert seen == [plain]
