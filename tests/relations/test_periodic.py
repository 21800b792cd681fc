"""periodic: every variable of a kind changes every k training steps."""

from __future__ import annotations

import pytest

from tests.builders import MLP, TraceBuilder
from tests.golden import Golden, mentions
from tests.learning import broken, claims, decide, learn, report_of, values_of
from traincheck.schema.findings import Symptom
from traincheck.schema.observations.models import (
    AuxiliaryEval,
    AuxiliaryInitialNorms,
    AuxiliaryTraining,
)

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


def test_the_period_is_learned(golden: Golden):
    found = golden.each(claims(learn(run(40, 3).build()), "periodic"))
    assert values_of(found, "periodic", "period") == [3]


def test_what_changes_in_every_step_is_left_to_contains():
    result = learn(TraceBuilder().process().model("Net", MLP).optimizer().steps(30).build())
    assert not claims(result, "periodic")
    assert claims(result, "contains", outer="step", role="parameter", change="changes")


@pytest.mark.parametrize("params", [{**WEIGHTS, "period": 0}, {**WEIGHTS, "role": "gradient"}])
def test_parameters_that_no_version_wrote_are_refused(params):
    with pytest.raises(ValueError, match="nothing is known"):
        decide("periodic", params, [])


def served(steps, moves, *, text=AuxiliaryEval.text, looks=lambda step: step < 8 or step % 10 == 9):
    """A model that is called without grad and looked at now and then. moves: steps that move it."""
    trace = TraceBuilder().process().model("Net", MLP).optimizer()
    for step in range(steps):
        trace.begin_step()
        if looks(step):
            weights = sum(move < step for move in moves)
            trace.mark(text, model="Target", weights=str(weights))
        trace.zero_grad().forward("Net").backward([f"Net.{n}" for n in MLP]).optimizer_step()
    return trace.build()


SERVING = {"role": "serving model", "model": "Target", "period": 84}


@pytest.mark.parametrize(
    "text", [AuxiliaryEval.text, AuxiliaryInitialNorms.text, AuxiliaryTraining.text]
)
def test_a_serving_model_may_rest_three_times_as_long_as_it_did(text, golden: Golden):
    healthy = served(200, range(0, 200, 20), text=text)
    assert golden.each(claims(learn(healthy), "periodic", **SERVING))
    assert broken(decide("periodic", SERVING, healthy)) == []
    assert broken(decide("periodic", SERVING, served(200, range(0, 200, 50), text=text))) == []


@pytest.mark.parametrize("moves", [[], [0], range(0, 21, 20)])
def test_a_serving_model_that_moves_no_more_is_told_once_in_each_stretch(moves):
    found = broken(decide("periodic", SERVING, served(190, moves)))
    assert [finding[1:] for finding in found] == [(Symptom.STATE_UNCHANGED, "Target")] * len(found)
    first = max(moves, default=0) + 84
    assert first < found[0][0] <= first + 20
    assert len(found) <= 2


def test_a_serving_model_that_rests_or_moved_too_seldom_teaches_nothing():
    for moves in ([], [0, 20]):
        found = values_of(learn(served(200, moves)), "periodic", "period", role="serving model")
        assert set(found) <= {None}


def test_what_is_said_of_it(golden: Golden):
    invariants = learn(served(200, range(0, 200, 20))).invariants
    finding = report_of(invariants, served(190, [])).findings[0]
    golden(finding)
    assert mentions(finding, 89)


ASKED = {"role": "serving model", "model": "Target", "asked": 90}


def test_a_serving_model_is_asked_in_training_steps(golden: Golden):
    invariants = learn(served(60, [])).invariants
    assert golden.each(claims(invariants, "periodic", **ASKED))
    assert broken(decide("periodic", ASKED, served(60, []))) == []
    for looks, step in ((lambda step: False, 90), (lambda step: step < 20, 109)):
        events = served(130, [], looks=looks)
        assert broken(decide("periodic", ASKED, events)) == [(step, Symptom.MISSING_CALL, "Target")]
    golden(report_of(invariants, events).findings[0])


@pytest.mark.parametrize(
    "looks", [lambda step: step % 4 == 3, lambda step: 30 < step < 40, lambda step: step == 0]
)
def test_of_a_serving_model_that_is_asked_now_and_then_nothing_is_said(looks):
    found = values_of(learn(served(80, [], looks=looks)), "periodic", "asked")
    assert set(found) <= {None}


def test_steps_that_were_not_recorded_do_not_count_for_what_is_asked():
    trace = TraceBuilder().process().model("Net", MLP).optimizer().steps(3).skipped_steps(200)
    assert decide("periodic", ASKED, trace.steps(3).build()) == []


@pytest.mark.parametrize("limits", [{}, {"asked": 0}, {"asked": 9, "period": 9}])
def test_other_parameters_of_serving_models_are_refused(limits):
    with pytest.raises(ValueError, match="nothing is known"):
        decide("periodic", {"role": "serving model", "model": "Target", **limits}, [])
