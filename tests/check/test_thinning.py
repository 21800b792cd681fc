"""Calls within models that are recorded in some training steps: quiet, and still found there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from operator import or_

import pytest

from tests.builders import healthy_run
from tests.learning import learn, report_of
from traincheck.check.thinning import thinned
from traincheck.infer.view import selective
from traincheck.schema.claims import Invariant, Needs, Schedule, is_within_modules, without_some
from traincheck.schema.events import CallEvent, Event, MarkEvent, StepEvent
from traincheck.schema.findings import Report
from traincheck.schema.invariant_file import needs_json

LINEAR = "torch.nn.modules.linear.Linear.forward"
SCHEDULE = Schedule()
STEPS, EVAL_EVERY = 36, 6


def taught() -> list[Invariant]:
    return list(learn(healthy_run(24, eval_every=4)).invariants)


def is_missing(event: Event) -> bool:
    """Whether selective collection leaves this call out of its step."""
    if not isinstance(event, CallEvent) or event.root or event.stage == "eval":
        return False
    return is_within_modules(event.api) and not SCHEDULE.takes(event.step or 0)


def recorded(
    events: Iterable[Event], invariants: Iterable[Invariant], *, is_told: bool = True
) -> list[Event]:
    """What ``collect -i`` writes; is_told: also that some calls are there in some steps only."""
    needs = reduce(or_, (i.needs for i in invariants), Needs())
    assert needs.is_sparse
    found = []
    for event in events:
        less = selective(event, needs)
        if less is None or is_missing(less):
            continue
        if isinstance(less, MarkEvent) and not is_told and "recorded" in less.data:
            whole = needs_json(needs.at(is_whole=True))
            less = less.replace(data={**less.data, "recorded": whole})
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
    lost = without(events, lambda e: of_layer(e) and e.stage != "eval" and (e.step or 0) >= 5)
    found = check(lost).findings
    assert [(f.first_step, f.subject.api) for f in found] == [(10, LINEAR)]


def test_evaluation_is_recorded_whatever_the_step() -> None:
    events = healthy_run(STEPS, eval_every=EVAL_EVERY)
    result = {"dtype": "float32", "shape": [64, 10, 1], "device": "cpu"}
    bent = [
        e.replace(result=result)
        if isinstance(e, CallEvent) and e.root and e.stage == "eval" and (e.step or 0) > 20
        else e
        for e in events
    ]
    wrong = {e.step for e in bent if e not in events}
    assert wrong
    assert not any(map(SCHEDULE.takes, wrong))
    found = check(bent).findings
    assert found
    assert {f.first_step for f in found} == {min(wrong)}


@pytest.mark.parametrize("step", [0, 3, 10, 20, None])
def test_whole_steps_stay_as_they_are(step: int | None) -> None:
    call = CallEvent(0, 0, step, "train", 0, "p1-t0", api=LINEAR, span=1)
    end = StepEvent(1, 0, step, "train", 0, "p1-t0")
    assert thinned(call, SCHEDULE) is call
    assert thinned(end, SCHEDULE) is end


def test_of_other_steps_calls_are_left_out_and_their_end_tells_so() -> None:
    head = (0, 0, 7, "train", 0, "p1-t0")
    assert thinned(CallEvent(*head, api=LINEAR, span=1), SCHEDULE) is None
    counted = StepEvent(*head, counters={"backward": 1})
    assert thinned(counted, SCHEDULE) == StepEvent(*head, counters={"backward": 1}, recorded=False)
    mark = MarkEvent(*head, text="mine")
    assert thinned(mark, SCHEDULE) is mark
    assert thinned(counted, Schedule(first=8, every=10)) is counted
    gap = StepEvent(*head, recorded=False, complete=False)
    assert thinned(gap, SCHEDULE) is gap


def test_losses_and_landmarks_are_wanted_in_every_step() -> None:
    needs = reduce(or_, (i.needs for i in taught()), Needs())
    assert LINEAR in needs.rare
    assert "torch.nn.functional.cross_entropy" in needs.calls
    assert "torch.nn.Module.forward" in needs.calls


def test_needs_of_those_who_want_all_calls_prevail() -> None:
    rare = Needs(calls=frozenset({f"{LINEAR}@some"}))
    all_of_them = Needs(calls=frozenset({LINEAR}))
    assert rare.is_sparse
    assert rare.rare == {LINEAR}
    assert rare.hears(LINEAR)
    assert not (rare | all_of_them).is_sparse
    assert not (rare | all_of_them).rare
    assert not (rare | Needs(kinds=frozenset({"call"}))).is_sparse
    assert rare.at(is_whole=True) == all_of_them
    assert rare.at(is_whole=False) == Needs()
    assert without_some(rare.calls) == {LINEAR}
