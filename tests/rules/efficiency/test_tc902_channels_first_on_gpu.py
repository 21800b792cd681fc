"""TC902: layout of convolutions."""

from __future__ import annotations

import pytest

from tests.checking import fires, quiet
from tests.rules.models import conv, told
from traincheck.schema.findings import Verdict

GPU = {"dtype": "float16", "devices": {"cuda:0": 1000}}
BROKEN = told({"a": conv(3, 8, channels_last=False)}, **GPU)


def test_fires_when_none_is_channels_last() -> None:
    assert fires("TC902", BROKEN).subject.module == "Net.a"


def test_quiet_when_converted() -> None:
    layers = {"a": conv(3, 8, channels_last=True), "b": conv(8, 8, channels_last=False)}
    assert quiet("TC902", told(layers, **GPU)) is Verdict.HELD


@pytest.mark.parametrize("more", [{}, {"devices": {"cuda:0": 1000}}], ids=str)
def test_quiet_elsewhere(more: dict) -> None:
    layers = {"a": conv(3, 8, channels_last=False)}
    assert quiet("TC902", told(layers, **more)) is Verdict.NOT_TRIGGERED
