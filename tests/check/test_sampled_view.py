"""Calls within models that are recorded in some training steps: quiet, and still found there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from operator import or_

import pytest

from tests.builders import healthy_run
from tests.learning import learn, report_of
from traincheck.check.monitors.invariant_monitor import in_sampled_view
from traincheck.check.verdicts import TraceView
from traincheck.infer.replay_views import in_selective_view
from traincheck.schema.claims import (
    SAMPLED_STEPS,
    Invariant,
    Needs,
    Schedule,
    is_within_modules,
    sampled,
    without_sampling,
)
from traincheck.schema.events import CallEvent, Event, MarkEvent, StateEvent, StepEvent
from traincheck.schema.findings import Report
from traincheck.schema.invariant_file import needs_json
from traincheck.schema.marks import LIFECYCLE_CHANGES

LINEAR = "torch.nn.modules.linear.Linear.forward"
SCHEDULE = SAMPLED_STEPS
STEPS, EVAL_EVERY = 36, 6


def taught() -> list[Invariant]:
    return list(learn(healthy_run(24, eval_every=4)).invariants)


def is_missing(event: Event) -> bool:
    """Whether selective collection leaves this call, or look, out of its step."""
    if SCHEDULE.includes(event.step or 0):
        return False
    if isinstance(event, StateEvent):
        return event.change not in LIFECYCLE_CHANGES
    if not isinstance(event, CallEvent) or event.root or event.stage == "eval":
        return False
    return is_within_modules(event.api)


def recorded(
    events: Iterable[Event], invariants: Iterable[Invariant], *, is_told: bool = True
) -> list[Event]:
    """What ``collect -i`` writes; is_told: also that some calls are there in some steps only."""
    needs = reduce(or_, (i.needs for i in invariants), Needs())
    assert needs.samples_calls
    assert needs.samples_scans
    sampled = [SCHEDULE.first, SCHEDULE.every]
    found = []
    for event in events:
        less = in_selective_view(event, needs)
        if less is None or is_missing(less):
            continue
        if isinstance(less, MarkEvent) and "recorded" in less.data:
            told = needs if is_told else needs.resolve(sample_calls=False, sample_scans=False)
            less = less.replace(data={**less.data, "recorded": needs_json(told), "some": sampled})
        found.append(less)
    return found


def check(events: list[Event], **options: bool) -> Report:
    invariants = taught()
    return report_of(invariants, recorded(events, invariants, **options))


def without(events: Iterable[Event], is_lost: Callable[[CallEvent], bool]) -> list[Event]:
    return [e for e in events if not (isinstance(e, CallEvent) and is_lost(e))]


def of_layer(event: CallEvent) -> bool:
    return event.module == "Net.fc2"


def test_what_is_recorded_in_some_steps_only_is_not_missed_in_others() -> None:
    healthy = healthy_run(STEPS, eval_every=EVAL_EVERY)
    assert check(healthy).findings == []
    assert check(healthy, is_told=False).findings  # the calls are not there


def test_what_is_wrong_within_a_model_is_found_in_the_next_such_step() -> None:
    events = healthy_run(STEPS, eval_every=EVAL_EVERY)
    lost = without(events, lambda e: of_layer(e) and e.stage != "eval" and (e.step or 0) >= 9)
    found = check(lost).findings
    assert [(f.first_step, f.subject.api) for f in found] == [(14, LINEAR)]


def test_a_parameter_that_stops_is_found_in_the_next_step_with_looks() -> None:
    events = healthy_run(STEPS, eval_every=EVAL_EVERY)
    stopped = [
        e
        for e in events
        if not (
            isinstance(e, StateEvent)
            and (e.name, e.change, e.role) == ("Net.fc2.weight", "content", "parameter")
            and (e.step or 0) >= 9
        )
    ]
    assert len(stopped) < len(events)
    found = check(stopped).findings
    assert [(f.first_step, f.subject.variable) for f in found] == [(14, "Net.fc2.weight")]


def test_evaluation_is_recorded_whatever_the_step() -> None:
    events = healthy_run(STEPS, eval_every=EVAL_EVERY)
    result = {"dtype": "float32", "shape": [64, 10, 1], "device": "cpu"}
    bent = [
        e.replace(result=result)
        if isinstance(e, CallEvent) and e.root and e.stage == "eval" and 20 < (e.step or 0) < 30
        else e
        for e in events
    ]
    wrong = {e.step for e in bent if e not in events}
    assert wrong
    assert not any(map(SCHEDULE.includes, wrong))
    found = check(bent).findings
    assert found
    assert {f.first_step for f in found} == {min(wrong)}


@pytest.mark.parametrize("step", [0, 7, 14, 21, None])
def test_whole_steps_stay_as_they_are(step: int | None) -> None:
    call = CallEvent(0, 0, step, "train", 0, "p1-t0", api=LINEAR, span=1)
    end = StepEvent(1, 0, step, "train", 0, "p1-t0")
    assert in_sampled_view(call, SCHEDULE) is call
    assert in_sampled_view(end, SCHEDULE) is end


def test_of_other_steps_calls_are_left_out_and_their_end_tells_so() -> None:
    head = (0, 0, 9, "train", 0, "p1-t0")
    assert in_sampled_view(CallEvent(*head, api=LINEAR, span=1), SCHEDULE) is None
    counted = StepEvent(*head, counters={"backward": 1})
    assert in_sampled_view(counted, SCHEDULE) == StepEvent(
        *head, counters={"backward": 1}, recorded=False
    )
    mark = MarkEvent(*head, text="mine")
    assert in_sampled_view(mark, SCHEDULE) is mark
    assert in_sampled_view(counted, Schedule(first=10, every=10)) is counted
    gap = StepEvent(*head, recorded=False, complete=False)
    assert in_sampled_view(gap, SCHEDULE) is gap


def test_losses_and_landmarks_are_wanted_in_every_step() -> None:
    needs = reduce(or_, (i.needs for i in taught()), Needs())
    assert LINEAR in needs.sampled_calls
    assert "torch.nn.functional.cross_entropy" in needs.calls
    assert "torch.nn.Module.forward" in needs.calls


def test_needs_of_those_who_want_all_calls_prevail() -> None:
    rare = Needs(calls=frozenset({f"{LINEAR}@some"}))
    all_of_them = Needs(calls=frozenset({LINEAR}))
    assert rare.samples_calls
    assert rare.sampled_calls == {LINEAR}
    assert rare.delivers(LINEAR)
    assert not (rare | all_of_them).samples_calls
    assert not (rare | all_of_them).sampled_calls
    assert not (rare | Needs(kinds=frozenset({"call"}))).samples_calls
    assert rare.for_step(is_full=True) == all_of_them
    assert rare.for_step(is_full=False) == Needs()
    assert rare.resolve(sample_calls=False, sample_scans=True) == all_of_them
    assert without_sampling(rare.calls) == {LINEAR}


def test_who_looks_at_variables_in_all_steps_prevails() -> None:
    rare = Needs(states=sampled("gradient@backward") | {"parameter@new", "batch@content"})
    one = Needs(states=frozenset({"parameter@step"}))
    assert rare.samples_scans
    assert rare.sampled_states == {"gradient@backward"}
    assert rare.scans("gradient@backward")
    assert not rare.scans("parameter@step")
    assert not (rare | one).samples_scans
    assert not (rare | Needs(kinds=frozenset({"state"}))).samples_scans
    whole = rare.resolve(sample_calls=True, sample_scans=False)
    assert whole.states == {"gradient@backward", "parameter@new", "batch@content"}
    assert not (rare | whole).sampled_states


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [("gradient@backward", "the state of gradient@backward in all steps"), ("buffer@new", None)],
)
def test_what_was_looked_at_now_and_then_does_not_serve_who_wants_it_always(
    wanted: str, reason: str | None
) -> None:
    view = TraceView(recorded=Needs(states=sampled("gradient@backward")))
    always = Needs(states=frozenset({wanted}))
    assert view.missing_for(Needs(states=sampled("gradient@backward"))) is None
    assert view.missing_for(always) == (reason and f"the trace was recorded without {reason}")
