"""The engine: processes, views, faults of checks, conclusions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.builders import MLP, TraceBuilder, healthy_run
from tests.check.fakes import RELATIONS, STEPS, invariant
from tests.checking import FIRST_RULES as RULES
from traincheck.check.engine import Engine, run_checks
from traincheck.schema.claims import Invariant, Needs
from traincheck.schema.events import Event
from traincheck.schema.findings import CheckInfo, Report, Verdict, Violation
from traincheck.schema.invariant_file import needs_json
from traincheck.schema.torch_api import Families


class Source:
    def __init__(self, events: Iterable[Event]) -> None:
        self._events = list(events)

    def events(self) -> Iterator[Event]:
        return iter(self._events)


def check(events: Iterable[Event], invariants: Iterable[Invariant] = (), **more: Any) -> Report:
    return run_checks(Source(events), invariants, relations=RELATIONS, **more)


class Broken:
    """A rule whose monitor fails in a given place."""

    info = CheckInfo(check_id="TC999", kind="rule", code="TC999", severity="error", title="x")
    needs = STEPS

    def __init__(self, place: str) -> None:
        self.place = place
        self.triggered = 0

    def monitor(self) -> Broken:
        self._fail("monitor")
        return self

    def observe(self, event: Event) -> Sequence[Violation]:
        self._fail("observe")
        return ()

    def finish(self) -> Sequence[Violation]:
        self._fail("finish")
        return ()

    def _fail(self, place: str) -> None:
        if place == self.place:
            raise ValueError("told to fail")


def test_counts_what_it_was_given() -> None:
    events = healthy_run(5)
    report = check(events, rules=RULES)
    assert (report.events, report.steps, report.ranks) == (len(events), 5, 1)
    assert set(report.verdicts.values()) == {Verdict.HELD}
    assert report.findings == []
    assert report.notes == ()


def test_every_check_gets_a_verdict() -> None:
    report = check(
        healthy_run(3), [invariant("held"), invariant("broken", value=2)], rules=RULES[:1]
    )
    assert report.verdicts == {
        "TC101": Verdict.HELD,
        "broken": Verdict.VIOLATED,
        "held": Verdict.HELD,
    }
    assert [finding.check for finding in report.findings] == ["broken"]


def test_an_empty_run_triggers_nothing() -> None:
    report = check([], [invariant("a")], rules=RULES)
    assert set(report.verdicts.values()) == {Verdict.NOT_TRIGGERED}
    assert (report.events, report.steps, report.ranks) == (0, 0, 0)


@pytest.mark.parametrize("place", ["monitor", "observe", "finish"])
def test_a_check_that_fails_is_switched_off_and_told_of(place: str) -> None:
    report = check(healthy_run(3), [invariant("a", value=2)], rules=[Broken(place), *RULES])
    assert report.verdicts["TC999"] is Verdict.NOT_OBSERVABLE
    assert report.verdicts["TC101"] is Verdict.HELD
    assert report.verdicts["a"] is Verdict.VIOLATED
    assert any("ValueError: told to fail" in note for note in report.notes)


def test_what_was_proved_before_a_fault_stands() -> None:
    report = check(healthy_run(4), [invariant("a", value=2, fails_at=2), invariant("b")])
    assert report.verdicts == {"a": Verdict.VIOLATED, "b": Verdict.NOT_OBSERVABLE}
    assert report.findings[0].last_step == 1


def test_a_claim_that_its_relation_refuses_does_not_take_others_down() -> None:
    bad = invariant("bad")
    broken = Invariant(id="bad", hypothesis=type(bad.hypothesis)(relation="every-step", params={}))
    report = check(healthy_run(3), [broken, invariant("good")])
    assert report.verdicts == {"bad": Verdict.NOT_OBSERVABLE, "good": Verdict.HELD}


def test_an_unknown_relation_is_not_observable() -> None:
    report = run_checks(Source(healthy_run(2)), [invariant("a")], relations={})
    assert report.verdicts == {"a": Verdict.NOT_OBSERVABLE}
    assert "knows no relation 'every-step'" in report.notes[0]


def test_a_view_that_lacks_what_is_needed_never_passes() -> None:
    recorded = needs_json(Needs(calls=frozenset({Families.BACKWARD})))
    events = TraceBuilder().process(recorded=recorded).model("Net", MLP).optimizer()
    broken = events.steps(4, omit={"zero_grad"}).build()
    report = check(broken, [invariant("a")], rules=RULES)
    assert report.verdicts["TC201"] is Verdict.NOT_OBSERVABLE
    assert report.verdicts["a"] is Verdict.HELD
    assert report.findings == []
    assert any(
        note.startswith("5 checks not observable") or "recorded" in note for note in report.notes
    )


def test_an_instrument_that_was_off_makes_checks_not_observable() -> None:
    events = TraceBuilder().process(instruments={"autograd": "off: ImportError()"})
    report = check(events.model().optimizer().steps(3).build(), [invariant("a")], rules=RULES)
    assert report.verdicts["TC201"] is Verdict.NOT_OBSERVABLE
    assert report.verdicts["a"] is Verdict.HELD
    assert "5 checks not observable: instrument autograd was off (ImportError())" in report.notes


def test_an_instrument_that_fails_on_the_way_ends_its_checks() -> None:
    events = TraceBuilder().process().model("Net", MLP).optimizer().steps(3)
    events.mark("instrument disabled", instrument="Autograd._describe", reason="KeyError('x')")
    # from here on backward is not recorded, which must not look like a missing one
    broken = events.steps(3, omit={"zero_grad"}).build()
    report = check(broken, [invariant("a")], rules=RULES)
    assert report.verdicts["TC201"] is Verdict.NOT_OBSERVABLE
    assert report.verdicts["a"] is Verdict.HELD
    assert any("autograd was off (KeyError('x'))" in note for note in report.notes)


def test_many_gaps_are_one_note_for_each_rank() -> None:
    events = TraceBuilder().process().model("Net", MLP).optimizer()
    for _ in range(12):
        events.steps(1).mark("dropped", records=1).mark("dropped", records=2)
    (note,) = check(events.build(), rules=RULES).notes
    assert note.startswith("events were lost at steps 0, 1, 2, 3, 4 and 7 more of rank 0:")


@pytest.mark.parametrize("mark", [("dropped", {}), ("instrument disabled", {"instrument": "f"})])
def test_lost_events_are_a_gap(mark: tuple[str, dict[str, str]]) -> None:
    events = TraceBuilder().process().model("Net", MLP).optimizer().steps(2)
    events.begin_step().mark(mark[0], **mark[1]).forward().backward().optimizer_step()
    report = check(events.steps(1).build(), rules=RULES)
    assert report.findings == []
    (note,) = report.notes
    assert note.startswith("events were lost at step 2 of rank 0:")
    without = TraceBuilder().process().model("Net", MLP).optimizer().steps(2)
    without.begin_step().forward().backward().optimizer_step()
    assert check(without.build(), rules=RULES).findings


def test_every_process_has_its_own_monitors() -> None:
    # two ranks whose steps interleave: seen as one process, gradients would seem never cleared
    ranks = [TraceBuilder(rank=r).process().model().optimizer().steps(4).build() for r in (0, 1)]
    merged = [event for pair in zip(*ranks) for event in pair]
    report = check(merged, [invariant("a")], rules=RULES)
    assert report.findings == []
    assert (report.steps, report.ranks) == (4, 2)
    assert set(report.verdicts.values()) == {Verdict.HELD}


def test_threads_of_a_process_share_monitors() -> None:
    events = TraceBuilder().process().model("Net", MLP).optimizer().steps(3).build()
    moved = [e.replace(stream="p1000-t1") if e.kind == "state" else e for e in events]
    assert check(moved, rules=RULES).verdicts["TC102"] is Verdict.HELD


def test_a_worker_says_nothing_about_what_can_be_observed() -> None:
    worker = TraceBuilder(pid=77, worker=True).process(instruments={"autograd": "off: a worker"})
    report = check([*healthy_run(3), *worker.seed().build()], rules=RULES)
    assert report.verdicts["TC201"] is Verdict.HELD


def test_a_rank_that_could_not_be_seen_is_told_of() -> None:
    other = TraceBuilder(rank=1).process(instruments={"autograd": "off: x"}).model().optimizer()
    report = check([*healthy_run(3), *other.steps(3).build()], rules=RULES)
    assert report.verdicts["TC201"] is Verdict.NOT_OBSERVABLE


def test_tells_only_the_first_violation_about_a_subject() -> None:
    told: list[tuple[Violation, CheckInfo]] = []
    report = check(
        healthy_run(4), [invariant("a", value=2)], on_violation=lambda v, i: told.append((v, i))
    )
    assert [(violation.step, info.check_id) for violation, info in told] == [(0, "a")]
    assert report.findings[0].violations == 4


def test_live_and_replayed_runs_conclude_alike() -> None:
    events = TraceBuilder().process().model("Net", MLP).optimizer().steps(4, style="C").build()
    engine = Engine([invariant("a", value=2)], RULES, RELATIONS)
    live = [violation for event in events for violation in engine.observe(event)]
    assert engine.finish() == check(events, [invariant("a", value=2)], rules=RULES)
    assert {violation.check_id for violation in live} == {"a", "TC203"}


def test_the_same_run_gives_the_same_report() -> None:
    events = TraceBuilder().process().model("Net", MLP).optimizer().steps(4, omit={"zero_grad"})
    ids = [invariant(f"i{n}", value=n % 3) for n in range(20)]
    run = events.build()
    assert check(run, ids, rules=RULES) == check(run, list(reversed(ids)), rules=RULES)


def test_wants_is_what_the_checks_need() -> None:
    engine = Engine([invariant("a", calls=["torch.f"])], RULES[:1], RELATIONS)
    assert {"torch.f", Families.BACKWARD} <= engine.needs.calls
    assert {"mark", "step", "optimizer"} <= engine.needs.kinds
    assert "batch" not in engine.needs.kinds


def test_nothing_changes_when_events_nobody_wants_are_left_out() -> None:
    broken = TraceBuilder().process().model("Net", MLP).optimizer().steps(4, omit={"zero_grad"})
    events = broken.build()
    engine = Engine((), RULES)
    wanted = [e for e in events if _is_wanted(e, engine.needs)]
    assert len(wanted) < len(events)
    for event in wanted:
        engine.observe(event)
    assert replace(engine.finish(), events=len(events)) == check(events, rules=RULES)


def _is_wanted(event: Event, wants: Needs) -> bool:
    if event.kind == "call":
        return event.api in wants.calls or event.family in wants.calls
    if event.kind == "state":
        return any(state.startswith(f"{event.role}@") for state in wants.states)
    return event.kind in wants.kinds


def test_steps_of_programs_that_run_one_after_the_other_add_up() -> None:
    one, other, rank = (
        TraceBuilder(pid=pid, rank=rank)
        .process()
        .model("Net", MLP)
        .optimizer()
        .steps(steps)
        .build()
        for pid, rank, steps in ((1, 0, 5), (2, 0, 5), (3, 1, 7))
    )
    report = check([*one, *other, *rank], rules=RULES)
    assert (report.steps, report.ranks) == (10, 2)
    assert report.findings == []
