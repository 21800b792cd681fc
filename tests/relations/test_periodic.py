"""periodic: every variable of a kind changes every k training steps."""

from __future__ import annotations

import pytest

from tests.builders import MLP, TraceBuilder
from tests.learning import broken, decide, learn, texts
from traincheck.schema.findings import Symptom

TARGET = {"fc1.weight": "Q", "fc2.weight": "Q"}


def run(steps: int, period: int, *, frozen_from: int | None = None, first: int = 0) -> TraceBuilder:
    """A target network that is brought up to date every few steps."""
    trace = TraceBuilder().process().model("Net", MLP).model("Target", TARGET)
    trace.optimizer(names=[f"Net.{name}" for name in MLP])
    for step in range(steps):
        trace.begin_step().zero_grad().forward("Net").backward([f"Net.{n}" for n in MLP])
        trace.optimizer_step()
        is_due = step % period == first
        if is_due and (frozen_from is None or step < frozen_from):
            update(trace)
    return trace


def update(trace: TraceBuilder) -> None:
    for name in TARGET:
        trace.write(f"Target.{name}")


WEIGHTS = {"role": "parameter", "module_class": "Q", "leaf": "weight", "period": 3}


def test_a_change_that_does_not_come_is_missed_in_its_step():
    assert broken(decide("periodic", WEIGHTS, run(12, 3).build())) == []
    found = broken(decide("periodic", WEIGHTS, run(12, 3, frozen_from=5).build()))
    assert found[:2] == [
        (6, Symptom.NOT_UPDATED, "Target.fc1.weight"),
        (6, Symptom.NOT_UPDATED, "Target.fc2.weight"),
    ]
    assert {step for step, *_ in found} == {6, 9}


def test_a_change_that_comes_early_is_none_the_worse():
    trace = run(5, 3).step()  # due and made in steps 0 and 3
    update(trace)
    assert broken(decide("periodic", WEIGHTS, trace.steps(2).build())) == []
    assert len(broken(decide("periodic", WEIGHTS, trace.steps(1).build()))) == len(TARGET)


def test_steps_that_were_not_recorded_begin_the_count_afresh():
    trace = run(4, 3).skipped_steps(5).steps(3)
    assert broken(decide("periodic", WEIGHTS, trace.build())) == []


def test_the_period_is_learned():
    found = texts(learn(run(40, 3).build()), "periodic")
    assert found == [
        "In train.py, every parameter of Target changes at least once every 3 training steps."
    ]


def test_what_changes_in_every_step_is_left_to_contains():
    result = learn(TraceBuilder().process().model("Net", MLP).optimizer().steps(30).build())
    assert texts(result, "periodic") == []
    assert "In train.py, in every training step, every parameter changes." in texts(result)


@pytest.mark.parametrize("params", [{**WEIGHTS, "period": 0}, {**WEIGHTS, "role": "gradient"}])
def test_parameters_that_no_version_wrote_are_refused(params):
    with pytest.raises(ValueError, match="nothing is known"):
        decide("periodic", params, [])
