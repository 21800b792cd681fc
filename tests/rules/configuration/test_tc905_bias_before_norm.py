"""TC905: a bias in front of a norm."""

from __future__ import annotations

import pytest

from tests.checking import BY_CODE, fires, quiet, report_of
from tests.rules.models import conv, linear, model, told
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


def test_tells_it_once_of_instances_of_one_class() -> None:
    layers = {"a": conv(3, 8, bias=True), "b": NORM}
    again = {"Net#2.a": conv(3, 8, bias=True), "Net#2.b": NORM}
    other = {"Net#3.a": conv(3, 16, bias=True), "Net#3.c": conv(16, 8, bias=True), "Net#3.d": NORM}
    trace = model(layers).steps(1)
    for name, modules in (("Net#2", again), ("Net#3", other)):
        trace.begin_step().mark("model", name=name, modules=modules)
    report = report_of(trace.build(), [BY_CODE["TC905"]])
    assert [found.subject.module for found in report.findings] == ["Net.a", "Net#3.c"]
