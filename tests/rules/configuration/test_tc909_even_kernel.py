"""TC909: kernels of even size."""

from __future__ import annotations

import pytest

from tests.checking import fires, quiet
from tests.rules.models import conv, told
from traincheck.schema.findings import Verdict

BROKEN = told({"a": conv(3, 8, kernel=4)})


def test_fires_on_an_even_kernel() -> None:
    assert fires("TC909", BROKEN).subject.module == "Net.a"


@pytest.mark.parametrize(
    "layer",
    [
        conv(3, 8, kernel=3),
        conv(3, 8, kernel=16, stride=16),
        conv(3, 8, kernel=4, stride=2),
        conv(8, 8, kernel=4, groups=8),
    ],
    ids=str,
)
def test_quiet_on_others(layer: dict) -> None:
    assert quiet("TC909", told({"a": layer})) is Verdict.HELD
