"""TC712: evaluation that becomes worse while training improves."""

from __future__ import annotations

from collections.abc import Sequence

from tests.builders import TraceBuilder
from tests.checking import fires, net, quiet
from tests.golden import Golden, mentions
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict
from traincheck.schema.values import TensorSummary, tensor_json


def loss(trace: TraceBuilder, value: float, *, grad: bool) -> None:
    result = tensor_json(TensorSummary("float32", (), value=value))
    trace.call("torch.nn.functional.cross_entropy", result=result, grad_enabled=grad)


def run(evaluations: Sequence[float], train: Sequence[float] | None = None) -> list[Event]:
    trace = net()
    for number, value in enumerate(evaluations):
        for _ in range(3):
            trace.step()
            loss(trace, (train or [1 / (n + 1) for n in range(99)])[number], grad=True)
        for _ in range(2):
            loss(trace, value, grad=False)
    trace.step()
    loss(trace, 0.01, grad=True)
    return trace.build()


BROKEN = run([1.0, 0.8, 0.7, 0.75, 0.8, 0.9, 1.0])


def test_fires_as_advice_and_names_the_best_step(golden: Golden) -> None:
    finding = fires("TC712", BROKEN)
    assert (finding.severity, finding.first_step) == ("info", 8)
    golden(finding)
    assert mentions(finding, 0.7, 1)


def test_quiet_when_evaluation_goes_up_and_down() -> None:
    assert quiet("TC712", run([1.0, 0.8, 0.9, 0.85, 1.0, 0.95, 1.1])) is Verdict.HELD


def test_quiet_when_training_gets_worse_too() -> None:
    rising = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6]
    assert quiet("TC712", run([1.0, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3], rising)) is Verdict.HELD


def test_quiet_on_few_evaluations() -> None:
    assert quiet("TC712", run([0.5, 0.6, 0.7, 0.8, 0.9])) is Verdict.NOT_TRIGGERED


def test_quiet_within_the_margin() -> None:
    assert quiet("TC712", run([1.0, 0.70, 0.71, 0.72, 0.73, 0.74, 0.75])) is Verdict.HELD
