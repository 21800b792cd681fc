"""TC901: sizes of inner layers."""

from __future__ import annotations

import pytest

from tests.checking import fires, quiet
from tests.golden import Golden, mentions
from tests.rules.models import linear, told
from traincheck.schema.findings import Verdict

GPU = {"dtype": "bfloat16", "devices": {"cuda:0": 1000}}
ODD = {"a": linear(3, 100), "b": linear(100, 64), "c": linear(64, 10)}
BROKEN = told(ODD, **GPU)


def test_fires_on_an_inner_layer(golden: Golden) -> None:
    finding = fires("TC901", BROKEN)
    assert finding.subject.module == "Net.b"
    golden(finding)
    assert mentions(finding, 8)


def test_quiet_on_what_the_data_give() -> None:
    even = {"a": linear(3, 96), "b": linear(96, 64), "c": linear(64, 10)}
    assert quiet("TC901", told(even, **GPU)) is Verdict.HELD


@pytest.mark.parametrize("more", [{}, {"devices": {"cuda:0": 9}}, {"dtype": "bfloat16"}])
def test_quiet_where_there_are_no_tensor_cores_to_use(more: dict) -> None:
    assert quiet("TC901", told(ODD, **more)) is Verdict.NOT_TRIGGERED
