"""TC903: float32 on a GPU."""

from __future__ import annotations

import pytest

from tests.checking import fires, quiet
from tests.rules.models import linear, model, told
from traincheck.schema.findings import Verdict

GPU = {"devices": {"cuda:0": 1000}}
BROKEN = model({"a": linear(2, 2)}, **GPU).steps(5).build()


def test_fires_after_three_steps() -> None:
    finding = fires("TC903", BROKEN)
    assert (finding.subject.module, finding.first_step) == ("Net", 2)


def test_quiet_under_autocast() -> None:
    events = [
        event.replace(autocast="bfloat16") if event.kind == "call" and event.root else event
        for event in BROKEN
    ]
    assert quiet("TC903", events) is Verdict.NOT_TRIGGERED


@pytest.mark.parametrize("more", [{}, {**GPU, "dtype": "bfloat16"}], ids=str)
def test_quiet_elsewhere(more: dict) -> None:
    assert quiet("TC903", told({"a": linear(2, 2)}, **more)) is Verdict.NOT_TRIGGERED
