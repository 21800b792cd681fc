"""TC905: a bias in front of a norm."""

from __future__ import annotations

import pytest

from tests.checking import fires, quiet
from tests.rules.models import conv, linear, told
from traincheck.schema.findings import Verdict

NORM = {"family": "batch norm", "num_features": 8}
BROKEN = told({"a": conv(3, 8, bias=True), "b": NORM})


def test_fires_on_a_bias_before_a_norm() -> None:
    assert fires("TC905", BROKEN).subject.module == "Net.a"


@pytest.mark.parametrize(
    "layers",
    [
        {"a": conv(3, 8, bias=False), "b": NORM},
        {"a": conv(3, 4, bias=True), "b": NORM},
        {"a": conv(3, 8, bias=True), "act": {}, "b": NORM},
        {"a": linear(3, 8, bias=True), "b": {"family": "norm"}},
        {"one.a": conv(3, 8, bias=True), "two.b": NORM},
    ],
    ids=str,
)
def test_quiet_on_others(layers: dict) -> None:
    assert quiet("TC905", told(layers)) in (Verdict.HELD, Verdict.NOT_TRIGGERED)
