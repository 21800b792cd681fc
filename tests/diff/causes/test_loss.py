"""The row "loss": the loss differs, and the outputs do not."""

from __future__ import annotations

from typing import Any

from tests.diff.run_pairs import Compare, edited, of, output, training
from traincheck.schema.torch_api import Families

FUNCTION = of("call", 2, api="torch.nn.functional.cross_entropy")
BACKWARD = of("call", 2, api=Families.BACKWARD)


def scalar(value: float) -> dict[str, Any]:
    return {"dtype": "float32", "shape": [], "device": "cpu", "value": value}


def test_fires_on_another_loss(compare: Compare) -> None:
    a = edited(training(), FUNCTION, result=scalar(1.0))
    found = compare(a, edited(a, FUNCTION, result=scalar(1.1)))
    assert found.cause is not None
    assert found.cause.code == "loss"


def test_fires_on_a_scaled_loss(compare: Compare) -> None:
    b = edited(training(), BACKWARD, args={"tensors": [scalar(4.0)]})
    found = compare(training(), b)
    assert found.cause is not None
    assert found.cause.code == "loss-scale"


def test_fires_on_another_target(compare: Compare) -> None:
    a = edited(training(), FUNCTION, args={"input": output("x"), "target": output("y")})
    found = compare(a, edited(a, FUNCTION, args={"input": output("x"), "target": output("z")}))
    assert found.cause is not None
    assert found.cause.code == "loss-argument"
    assert found.first is not None
    assert "target" in found.first.name


def test_quiet_where_outputs_are_not_recorded(compare: Compare) -> None:
    root = of("call", 2, root=True)
    blank = {"dtype": "float32", "shape": [4], "device": "cpu"}
    a = edited(edited(training(), FUNCTION, result=scalar(1.0)), root, result=blank)
    found = compare(a, edited(a, FUNCTION, result=scalar(1.1)))
    assert found.cause is not None
    assert found.cause.code == "forward-or-loss"
