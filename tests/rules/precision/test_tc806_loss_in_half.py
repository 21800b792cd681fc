"""TC806: a loss in half precision."""

from __future__ import annotations

import pytest

from tests.checking import fires, quiet
from tests.golden import mentions
from tests.rules.loss_runs import F, computing, loss_run, tensor
from traincheck.schema.findings import Verdict

LABELS = tensor((64,), "int64")

BROKEN = loss_run("cross_entropy", input=tensor((64, 10), "bfloat16"), target=LABELS)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_fires_as_advice_once(dtype: str) -> None:
    events = loss_run("cross_entropy", input=tensor((64, 10), dtype), target=LABELS)
    finding = fires("TC806", events)
    assert (finding.severity, finding.first_step, finding.violations) == ("info", 0, 1)
    assert mentions(finding, dtype)


def test_quiet_on_float32_and_under_autocast() -> None:
    single = loss_run("cross_entropy", input=tensor((64, 10)), target=LABELS)
    assert quiet("TC806", single) is Verdict.HELD
    half = {"input": tensor((64, 10), "bfloat16"), "target": LABELS}
    trace = computing("cross_entropy", 1, input=tensor((64, 10)), target=LABELS)
    trace.call(f"{F}cross_entropy", args=half, autocast="bfloat16")
    trace.call(f"{F}cross_entropy", args=half, grad_enabled=False)
    assert quiet("TC806", trace.build()) is Verdict.HELD
