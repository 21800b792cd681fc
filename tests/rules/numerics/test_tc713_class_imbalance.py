"""TC713: labels of nearly one class."""

from __future__ import annotations

from tests.checking import fires, net, quiet
from tests.golden import mentions
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict
from traincheck.schema.values import TensorSummary, tensor_json


def run(
    top: float, *, low: int = 0, high: int = 1, size: int = 64, batches: int = 50
) -> list[Event]:
    labels = TensorSummary("int64", (size,), stats={"min": low, "max": high, "top": top})
    trace = net()
    for _ in range(batches):
        trace.begin_step().batch(leaves={"batch[1]": tensor_json(labels)})
    return trace.build()


BROKEN = run(0.97)


def test_fires_as_advice() -> None:
    finding = fires("TC713", BROKEN)
    assert (finding.severity, finding.subject.variable) == ("info", "batch[1]")
    assert mentions(finding, "97%")


def test_quiet_on_balanced_labels() -> None:
    assert quiet("TC713", run(0.6)) is Verdict.HELD


def test_quiet_on_a_column_that_never_changes() -> None:
    assert quiet("TC713", run(1.0, low=1, high=1)) is Verdict.HELD


def test_quiet_on_small_batches_and_short_runs() -> None:
    assert quiet("TC713", run(0.97, size=4)) is Verdict.NOT_TRIGGERED
    assert quiet("TC713", run(0.97, batches=49)) is Verdict.NOT_TRIGGERED
