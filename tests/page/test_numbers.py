"""Numbers over steps: no peak is lost, however many steps share a column."""

from __future__ import annotations

import base64
import json
import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import LINEAR, MLP, TraceBuilder
from tests.page.making import codes
from traincheck.page.axis import Axis
from traincheck.page.data import Sides, numbers_of
from traincheck.page.encode import ABSENT, BROKEN, ZERO, Grid, apart, cells, folded
from traincheck.page.timeline import LOSS, Timeline
from traincheck.schema.events import CallEvent
from traincheck.schema.torch_api import Families
from traincheck.schema.values import TensorSummary, tensor_json

HIGHEST = 252
KB = 1000


@given(st.integers(0, 3000), st.integers(1, 3000))
def test_a_peak_is_in_every_fold(step: int, steps: int) -> None:
    axis = Axis(most=16)
    row, grid = axis.row(), Grid(axis)
    for each in range(0, max(steps, step + 1), 7):
        row.add(each, 1.0)
        grid.add(0, each, {"a": 1.0, "b": 1.0})
    row.add(step, 9.0)
    grid.add(0, step, {"b": 9.0})
    column = step // axis.width
    assert axis.columns <= axis.most
    assert row.high[column] == 9.0
    assert max(row.low) == 1.0 or step % 7
    highest = grid.highest(["a", "b"])
    assert highest[1, column] == 9.0
    assert np.nanmax(highest[0]) == 1.0
    assert np.nanmax(folded(highest, 4)[1]) == 9.0


def test_steps_that_were_not_recorded_are_gaps() -> None:
    axis = Axis()
    row = axis.row()
    row.add(0, 1.0)
    row.add(3, 2.0)
    assert [math.isnan(number) for number in row.high] == [False, True, True, False]


def test_cells_are_on_a_logarithmic_scale() -> None:
    numbers = np.array([[1.0, 10.0, 100.0, 0.0, np.inf, np.nan]], np.float32)
    text, low, high = cells(numbers)
    assert (low, high) == (1.0, 100.0)
    found = list(base64.b64decode(text))
    assert found == [1, 1 + round((HIGHEST - 1) / 2), HIGHEST, ZERO, BROKEN, ABSENT]


def test_cells_of_one_number_and_of_none() -> None:
    assert cells(np.full((1, 2), 5.0, np.float32)) == (base64.b64encode(b"\1\1").decode(), 5.0, 5.0)
    assert cells(np.full((1, 1), np.nan, np.float32))[1:] == (1.0, 1.0)


def test_how_far_two_numbers_are_apart() -> None:
    one = np.array([4.0, 0.0, np.inf, np.inf, np.nan, 2.0], np.float32)
    other = np.array([1.0, 0.0, np.inf, 3.0, 1.0, np.nan], np.float32)
    found = apart(one, other)
    assert list(found[:4]) == [0.75, 0.0, 0.0, math.inf]
    assert np.isnan(found[4:]).all()


def test_a_layer_that_one_rank_has_later() -> None:
    grid = Grid(Axis())
    for rank in range(20):
        grid.add(rank, 0, {f"layer{index}": 1.0 + rank for index in range(70)})
    grid.add(0, 1, {"late": 3.0})
    names = ["layer0", "late", "unknown"]
    assert grid.highest(names)[:, 0].tolist()[0] == 20.0
    assert grid.highest(names)[1, 1] == 3.0
    assert np.isnan(grid.highest(names)[2]).all()
    spread = grid.spread(names)
    assert spread is not None
    assert spread[0, 0] == pytest.approx(15 / 16)  # of the ranks that are kept apart


def long_run(steps: int, layers: int, ranks: int = 2) -> Timeline:
    timeline = Timeline()
    for step in range(steps):
        for rank in range(ranks):
            numbers = {f"Net.{index}": 1 + (step * index) % 17 for index in range(layers)}
            for name in ("gradient norm", "parameter norm", "activation rms"):
                timeline.layers(name, rank, step, numbers)
            timeline.curve("loss", "", rank, step, step % 13 + rank)
    return timeline


def test_the_numbers_of_a_long_run_are_bounded() -> None:
    timeline = long_run(2500, 300)
    timeline.layers("gradient norm", 1, 1234, {"Net.7": 1e6})
    found = numbers_of(timeline)
    assert len(json.dumps(found)) <= 1100 * KB
    drawn = next(one for one in found["maps"] if one["name"] == "gradient norm")
    assert drawn["left_out"] == 0
    assert codes(drawn)[drawn["rows"].index("Net.7")][1234 // drawn["width"]] == HIGHEST


def test_the_gradient_comes_first_and_ranks_last() -> None:
    timeline = long_run(4, 3)
    timeline.layers("parameter norm", 1, 2, {"Net.1": 50.0})
    found = [one["name"] for one in numbers_of(timeline)["maps"]]
    assert found[:3] == ["gradient norm", "activation rms", "parameter norm"]
    assert found[3:] == ["parameter norm, spread of ranks"]  # the others agree


def test_many_layers_are_counted() -> None:
    assert numbers_of(long_run(2, 450, ranks=1))["maps"][0]["left_out"] == 50


def test_curves_of_many_ranks_are_their_median_in_a_band() -> None:
    found = numbers_of(long_run(5, 1, ranks=9))
    assert found["agree"] == ["gradient norm", "parameter norm", "activation rms"]
    (loss,) = numbers_of(long_run(5, 1, ranks=9))["curves"]
    assert loss["label"] == "median of 9 ranks"
    middle, low, high = (
        struct.unpack("<5f", base64.b64decode(loss[side])) for side in ("middle", "low", "high")
    )
    assert (low[1], middle[1], high[1]) == (1.0, 5.0, 9.0)


def test_another_run_is_on_the_same_axis() -> None:
    timeline = long_run(40, 3, ranks=1)
    other = Timeline(timeline.axis, shift=-10)  # this run continues it at step 10
    for step in range(50):
        other.layers("gradient norm", 0, step, {"Net.1": 1 + ((step - 10) % 17)})
        other.curve("loss", "", 0, step, 1.0)
    sides = Sides(timeline=other, names=("full", "resumed"))
    found = numbers_of(timeline, (), sides, first=0)
    assert [one["label"] for one in found["curves"]] == ["A full", "B resumed"]
    assert found["marks"][0] == {"step": 0, "kind": "difference", "text": "first difference"}
    drawn = next(
        one for one in found["maps"] if one["name"].endswith("difference to the other run")
    )
    row = codes(drawn)[drawn["rows"].index("Net.1")]
    assert set(row) == {ZERO}  # they are the same, step by step
    assert set(codes(drawn)[drawn["rows"].index("Net.2")]) == {ABSENT}


def test_layers_are_in_the_order_in_which_the_model_has_them() -> None:
    timeline = Timeline()
    trace = TraceBuilder().model("Net", {f"{name}.weight": LINEAR for name in ("b", "a10", "a2")})
    for event in trace.events:
        timeline.add(event)
    assert timeline.in_model_order(["Net.a2", "Net.x", "Net.a10", "Net", "Net.b"]) == [
        "Net", "Net.x", "Net.b", "Net.a10", "Net.a2",
    ]  # fmt: skip


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_loss_that_is_text_is_not_finite_at_its_step_alone(value: str) -> None:
    broken = tensor_json(TensorSummary("float32", (), value=value, requires_grad=True))
    timeline = Timeline()
    for event in TraceBuilder().process().model("Net", MLP).optimizer().steps(6).build():
        is_loss = isinstance(event, CallEvent) and event.api == Families.BACKWARD
        if is_loss and event.step == 4:
            timeline.add(event.replace(args={"tensors": [broken]}))
        else:
            timeline.add(event)
    high = timeline.curves[LOSS][""][0].high
    assert [step for step, number in enumerate(high) if math.isinf(number)] == [4]
