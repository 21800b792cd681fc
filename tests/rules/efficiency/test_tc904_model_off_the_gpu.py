"""TC904: where a model is."""

from __future__ import annotations

import pytest

from tests.checking import fires, quiet
from tests.golden import Golden, mentions
from tests.rules.models import linear, told
from traincheck.schema.findings import Verdict

LAYERS = {"a": linear(2, 2)}
BROKEN = told(LAYERS, devices={"cpu": 1000}, cuda=True)


@pytest.mark.parametrize("devices", [{"cpu": 9}, {"cpu": 9, "cuda:0": 9}], ids=["all", "some"])
def test_fires_off_the_gpu(devices: dict[str, int], golden: Golden) -> None:
    finding = golden(fires("TC904", told(LAYERS, devices=devices, cuda=True)))
    assert mentions(finding, "cpu")
    assert mentions(finding, 9) is (len(devices) > 1)


@pytest.mark.parametrize(("devices", "cuda"), [({"cpu": 9}, False), ({"cuda:0": 9}, True)])
def test_quiet_where_it_belongs(devices: dict, cuda: bool) -> None:
    assert quiet("TC904", told(LAYERS, devices=devices, cuda=cuda)) is Verdict.HELD
