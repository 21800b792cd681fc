"""TC104: leftovers in an optimizer."""

from __future__ import annotations

from tests.builders import MLP, TraceBuilder
from tests.checking import fires, net, quiet
from tests.golden import mentions
from traincheck.schema.findings import Verdict

HEAD = ["Net.fc2.weight", "Net.fc2.bias"]


def replaced() -> TraceBuilder:
    """A head that was replaced, and added to another optimizer."""
    return net().steps(1).begin_step().replace(*HEAD).optimizer(names=HEAD)


BROKEN = replaced().steps(4).build()


def test_fires_on_what_was_replaced() -> None:
    finding = fires("TC104", BROKEN)
    assert finding.variables == tuple(sorted(HEAD))
    assert finding.severity == "info"
    assert mentions(finding, "train.py:40")


def test_quiet_without_leftovers() -> None:
    assert quiet("TC104", net().steps(4).build()) is Verdict.HELD


def test_quiet_on_tensors_optimized_for_themselves() -> None:
    trace = TraceBuilder().process().model("Net", MLP).optimizer(foreign={"opt0[0].4": 7})
    assert quiet("TC104", trace.steps(4).build()) is Verdict.HELD
