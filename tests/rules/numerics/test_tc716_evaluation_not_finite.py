"""TC716: evaluations whose losses are no number."""

from __future__ import annotations

from collections.abc import Sequence

from tests.checking import fires, net, quiet
from tests.golden import mentions
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict

LOSS = "torch.nn.functional.cross_entropy"


def run(
    evaluations: Sequence[Sequence[float | str]], training: float | str = 0.7, api: str = LOSS
) -> list[Event]:
    """A step, then an evaluation of so many batches, again and again."""

    def loss(value: float | str, *, grad: bool) -> None:
        result = {"dtype": "float32", "shape": [], "device": "cpu", "value": value}
        trace.call(api, result=result, grad_enabled=grad)

    trace = net()
    for values in evaluations:
        trace.begin_step().zero_grad().forward()
        loss(training, grad=True)
        trace.backward().optimizer_step().train(False)
        for value in values:
            trace.forward(grad=False)
            loss(value, grad=False)
        trace.train(True)
    return trace.begin_step().build()


BROKEN = run([(0.5, 0.6), (0.5, "nan"), (0.4, "nan")])


def test_fires_at_the_first_of_two_evaluations() -> None:
    finding = fires("TC716", BROKEN)
    assert (finding.first_step, finding.violations) == (1, 1)
    assert mentions(finding, "cross_entropy")
    assert fires("TC716", run([("inf",), ("nan",), ("nan",)])).first_step == 0


def test_quiet_where_an_evaluation_between_is_finite() -> None:
    assert quiet("TC716", run([("nan",), (0.5,), ("nan",), (0.5,)])) is Verdict.HELD
    assert quiet("TC716", run([(0.5,), (0.4,)])) is Verdict.HELD


def test_quiet_where_training_is_not_finite_either() -> None:
    """Others tell of that, and why."""
    assert quiet("TC716", run([("nan",)] * 4, training="nan")) is Verdict.HELD


def test_quiet_on_a_loss_that_may_be_infinite() -> None:
    heard = run([("inf",)] * 4, api="torch.nn.functional.ctc_loss")
    assert quiet("TC716", heard) is Verdict.NOT_TRIGGERED
