"""The row "outputs": a module returns something else."""

from __future__ import annotations

from typing import Any

from tests.diff.run_pairs import Compare, edited, of, output, training
from traincheck.schema.torch_api import Families

LAYER = of("call", 2, module="Net.fc2", family=Families.MODULE)
DROPOUT = "torch.nn.modules.dropout.Dropout.forward"


def facts(threads: int) -> dict[str, Any]:
    return {"environment": {"OMP_NUM_THREADS": str(threads)}}


def test_fires_on_arithmetic_with_its_reason(compare: Compare) -> None:
    b = edited(training(), LAYER, result=output("x"))
    found = compare(training(), b, manifest_a=facts(1), manifest_b=facts(6))
    assert found.cause is not None
    assert found.cause.code == "arithmetic"
    assert "OMP_NUM_THREADS 1 | 6" in found.cause.text


def test_fires_without_a_reason_as_not_deterministic(compare: Compare) -> None:
    b = edited(training(), LAYER, result=output("x"))
    found = compare(training(), b, manifest_a=facts(1), manifest_b=facts(1))
    assert found.cause is not None
    assert found.cause.code == "not-deterministic"


def test_fires_on_a_layer_that_draws(compare: Compare) -> None:
    a = edited(training(), LAYER, api=DROPOUT)
    found = compare(a, edited(a, LAYER, result=output("x")))
    assert found.cause is not None
    assert found.cause.code == "random-layer"


def test_fires_on_another_shape(compare: Compare) -> None:
    found = compare(training(), edited(training(), LAYER, result={**output("x"), "shape": [5]}))
    assert found.cause is not None
    assert found.cause.code == "other-form"


def test_fires_on_another_input_of_the_model(compare: Compare) -> None:
    root = of("call", 2, root=True)
    a = edited(training(), root, args={"0": output("given")})
    found = compare(a, edited(a, root, args={"0": output("other")}))
    assert found.cause is not None
    assert found.cause.code == "model-input"


def test_quiet_about_a_difference_that_is_no_rounding(compare: Compare) -> None:
    a = edited(training(), LAYER, result={**output("y"), "stats": {"norm": 1.0}})
    found = compare(a, edited(a, LAYER, result={**output("x"), "stats": {"norm": 2.0}}))
    assert found.cause is not None
    assert found.cause.code == "other-computation"
