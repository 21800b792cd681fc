"""TC804: float16 without a GradScaler."""

from __future__ import annotations

import pytest

from tests.checking import fires, net, quiet
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict
from traincheck.schema.torch_api import Families

SCALE = "torch.amp.GradScaler.scale"


def run(autocast: str | None, scaler: str | None = None, count: int = 3) -> list[Event]:
    """Steps under autocast; scaler: a family of calls of a GradScaler."""
    trace = net()
    root = {"family": Families.MODULE, "module": "Net", "root": True, "autocast": autocast}
    for _ in range(count):
        trace.begin_step().batch().zero_grad().call("__main__.Net.forward", **root)
        if scaler is not None:
            trace.call(scaler, family=scaler)
        trace.backward().optimizer_step()
    return trace.build()


BROKEN = run("float16")


def test_fires_from_the_first_step_on() -> None:
    finding = fires("TC804", BROKEN)
    assert (finding.first_step, finding.subject.module) == (0, "Net")


@pytest.mark.parametrize("scaler", [SCALE, Families.SCALER_STEP, Families.SCALER_UPDATE])
def test_quiet_with_a_scaler(scaler: str) -> None:
    assert quiet("TC804", run("float16", scaler)) is Verdict.HELD


def test_quiet_on_other_dtypes_and_on_a_single_step() -> None:
    assert quiet("TC804", run("bfloat16")) is Verdict.NOT_TRIGGERED
    assert quiet("TC804", run(None)) is Verdict.NOT_TRIGGERED
    assert quiet("TC804", run("float16", count=1)) is Verdict.HELD
