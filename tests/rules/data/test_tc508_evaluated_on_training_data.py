"""TC508: evaluation on the data of training."""

from __future__ import annotations

import pytest

from tests.builders import TraceBuilder
from tests.checking import fires, net, quiet
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict
from traincheck.schema.torch_api import Families


def run(*evaluated: str, count: int = 2) -> list[Event]:
    """Two epochs of training on loader0, and after each, batches of these loaders evaluated."""
    trace = net()
    for _ in range(2):
        trace.steps(3).train(False)
        for loader in evaluated:
            for _ in range(count):
                trace.batch(loader).forward(grad=False)
        trace.train()
    return trace.steps(1).build()


BROKEN = run("loader0")


def test_fires_as_advice_at_the_first_evaluation() -> None:
    finding = fires("TC508", BROKEN)
    assert (finding.severity, finding.first_step) == ("info", 2)
    assert finding.variables == ("loader0",)


@pytest.mark.parametrize("evaluated", [("loader1",), ("loader0", "loader1")])
def test_quiet_with_a_loader_for_evaluation(evaluated: tuple[str, ...]) -> None:
    assert quiet("TC508", run(*evaluated)) is Verdict.HELD


def test_says_nothing_without_evaluation() -> None:
    assert quiet("TC508", run()) is Verdict.NOT_TRIGGERED
    tensors = net().steps(3).train(False).forward(grad=False).forward(grad=False).train()
    assert quiet("TC508", tensors.steps(2).build()) is Verdict.NOT_TRIGGERED


def test_quiet_on_a_teacher_that_sees_the_batch_first() -> None:
    trace: TraceBuilder = net()
    for _ in range(4):
        trace.begin_step().batch().train(False).forward(grad=False).train()
        trace.zero_grad().forward().backward().optimizer_step()
    assert quiet("TC508", trace.build()) is Verdict.NOT_TRIGGERED


def test_quiet_where_the_next_batch_is_fetched_before_an_evaluation() -> None:
    trace = net()
    for _ in range(3):
        trace.begin_step().batch("loader0").train(False)
        for _ in range(3):
            trace.batch("loader1").forward(grad=False)
        trace.train().zero_grad().forward().backward().optimizer_step()
        trace.steps(2)
    assert quiet("TC508", trace.build()) is Verdict.HELD


@pytest.mark.parametrize("results", [1, 2])
def test_quiet_on_transforms_of_the_next_batch_that_are_modules(results: int) -> None:
    """As those of torchvision: they run between the last batch evaluated and the first trained.

    MixUp and CutMix return several tensors.
    """
    trace = net()
    for _ in range(2):
        trace.steps(3).train(False)
        for _ in range(2):
            trace.batch("loader1").forward(grad=False)
        tensor = {"dtype": "float32", "shape": [3, 8, 8], "device": "cpu"}
        result = tensor if results == 1 else [tensor] * results
        trace.call("Normalize.forward", family=Families.MODULE, root=True, result=result)
        trace.train()
    assert quiet("TC508", trace.steps(1).build()) is Verdict.HELD


def test_quiet_on_evaluation_that_tracks_gradients() -> None:
    trace = net()
    for _ in range(2):
        trace.steps(3).train(False).batch().forward().batch().forward().train()
    assert quiet("TC508", trace.steps(1).build()) is Verdict.NOT_TRIGGERED
