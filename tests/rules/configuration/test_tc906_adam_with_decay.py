"""TC906: Adam and weight decay."""

from __future__ import annotations

import pytest

from tests.builders import LINEAR, TraceBuilder
from tests.checking import fires, net, quiet
from tests.golden import mentions
from traincheck.schema.findings import Verdict

WEIGHTS = {"fc1.weight": LINEAR, "fc2.weight": LINEAR}
BROKEN = TraceBuilder().process().model("Net", WEIGHTS).optimizer(weight_decay=0.01).build()


def test_fires_on_coupled_decay() -> None:
    assert mentions(fires("TC906", BROKEN), "weight_decay=0.01")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weight_decay": 0.01, "decoupled_weight_decay": True},
        {"weight_decay": 0.01, "cls": "torch.optim.adamw.AdamW"},
    ],
    ids=str,
)
def test_quiet_on_others(options: dict) -> None:
    assert quiet("TC906", net(**options).build()) in (Verdict.HELD, Verdict.NOT_TRIGGERED)


def test_optimizers_of_one_line_are_one_finding() -> None:
    trace = TraceBuilder().process().model("Net", WEIGHTS)
    trace.optimizer(weight_decay=0.01)
    (made,) = [e for e in trace.build() if e.kind == "optimizer"]
    again = made.replace(id="opt7", seq=made.seq + 1000)  # type: ignore[call-arg]
    finding = fires("TC906", [*trace.build(), again])
    assert finding.violations == 1
