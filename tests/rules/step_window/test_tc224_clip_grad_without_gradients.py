"""TC224: clipping of parameters that have no gradients."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.builders import MLP, TraceBuilder
from tests.checking import fires, net, quiet
from tests.golden import mentions
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict
from traincheck.schema.torch_api import Families


def loop(*norms: Sequence[float | None], gradients: bool = True) -> list[Event]:
    """Steps. norms: what clipping finds in each of them, call by call."""
    trace = net()
    for found in norms:
        trace.begin_step().zero_grad().forward().backward(only=None if gradients else [])
        clip(trace, found)
        trace.optimizer_step()
    return trace.build()


def clip(trace: TraceBuilder, norms: Sequence[float | None]) -> None:
    for norm in norms:
        result = {"dtype": "float32", "shape": [], "device": "cpu"}
        result |= {} if norm is None else {"value": norm}
        trace.call(Families.CLIP_NORM, args={"max_norm": 1.0}, result=result, where="train.py:85")


BROKEN = loop([0.0], [0.0], [0.0], [0.0])


def test_fires_at_the_first_of_three_steps() -> None:
    finding = fires("TC224", BROKEN)
    assert (finding.first_step, finding.last_step) == (0, 3)
    assert mentions(finding, "train.py:85")


def test_fires_where_a_generator_is_empty_after_its_first_use() -> None:
    assert fires("TC224", loop([2.5], [0.0], [0.0], [0.0])).first_step == 1


@pytest.mark.parametrize(
    "norms",
    [
        ([2.0], [1.0], [0.5], [0.1]),
        ([0.0, 2.0], [0.0, 1.0], [0.0, 1.0]),  # a part that has none now
        ([0.0], [0.0], [1.0], [0.0], [0.0]),
    ],
)
def test_quiet_where_gradients_are_clipped(norms: Sequence[Sequence[float]]) -> None:
    assert quiet("TC224", loop(*norms)) is Verdict.HELD


def test_quiet_where_nothing_is_known() -> None:
    assert quiet("TC224", loop([None], [None], [None])) is Verdict.NOT_TRIGGERED  # on a device
    assert quiet("TC224", loop([], [], [])) is Verdict.NOT_TRIGGERED
    assert quiet("TC224", loop([0.0], [0.0], [0.0], gradients=False)) is Verdict.NOT_TRIGGERED


def test_quiet_on_each_of_two_optimizers() -> None:
    trace = TraceBuilder().process().model("G", MLP).model("D", MLP)
    for model in "GD":
        trace.optimizer(names=[f"{model}.{name}" for name in MLP])
    for _ in range(4):
        trace.begin_step()
        for owner, model in (("opt1", "D"), ("opt0", "G")):
            trace.zero_grad(owner).forward(model).backward([f"{model}.{name}" for name in MLP])
            clip(trace, [1.5])
            trace.optimizer_step(owner)
    assert quiet("TC224", trace.build()) is Verdict.HELD
