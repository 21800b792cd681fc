"""What stands out in metrics, and what does not."""

from __future__ import annotations

import math

import pytest

from traincheck.metrics.notable import notable
from traincheck.metrics.series import Metrics


def course(*values: float) -> dict[int, float]:
    return {20 * index: value for index, value in enumerate(values)}


USUAL = {f"update/layer{i}/ratio": course(1e-3, 1e-3, 1.1e-3, 1e-3, 1e-3) for i in range(5)}


@pytest.mark.parametrize(
    ("more", "line"),
    [
        (
            {
                "gradient/a/norm": course(1, 2, math.inf, math.nan),
                "activation/b/nonfinite": course(0, 0, 0, 3),
            },
            "gradient/a/norm is not finite since step 40, before any other",
        ),
        (
            {"activation/relu/zeros": course(0.5, 1, 1, 1, 1)},
            "relu: every element of its activation is 0 since step 20",
        ),
        (
            {"attention_entropy/m.head_2": course(3, 0.04, 0.03, 0.02, 0.02)},
            "m.head_2: entropy 0.02 nats, below 0.05 since step 20",
        ),
        (
            {"update/fast/ratio": course(1e-3, 2e-3, 1e-2, 2e-2, 4e-2)},
            "fast: update/weight 0.04 is 40 times the median's, and rises",
        ),
    ],
)
def test_notable(more: dict, line: str) -> None:
    assert notable(Metrics({**USUAL, **more})) == [line]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"activation/b/nonfinite": course(0, 0, 0)},
        {"activation/relu/zeros": course(1, 1, 0.9, 1, 1)},
        {"attention_entropy/m.head_2": course(0.01, 0.02, 3, 0.01)},
        {"update/bias/ratio": course(4e-1, 2e-1, 1e-1, 5e-2, 4e-2)},
        {"update/slow/ratio": course(1e-5, 2e-5, 3e-5, 4e-5, 5e-5)},
    ],
)
def test_usual(more: dict) -> None:
    assert notable(Metrics({**USUAL, **more})) == []


def test_few_lines() -> None:
    broken = {f"activation/m{i}/zeros": course(1, 1, 1, 1) for i in range(9)}
    assert notable(Metrics(broken))[-1] == "and 3 more"
    assert notable(Metrics({})) == []
