"""Readers of facts follow the processes of the engine, with its run states and its guards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import ClassVar

import pytest

from tests.builders import MLP, TraceBuilder
from tests.checking import BY_CODE, net
from tests.ranks import merged
from traincheck.check.engine import Engine
from traincheck.facts.reader import FactReader
from traincheck.facts.table import READERS
from traincheck.readings.provider import RunState, RunStates
from traincheck.rules.table import RULES
from traincheck.schema.claims import Needs
from traincheck.schema.events import Event
from traincheck.schema.facts import Fact
from traincheck.schema.findings import Report, Verdict
from traincheck.schema.torch_api import Families

STEPS = frozenset({"step"})


class Backwards(RunState):
    """Counts backward passes; breaks after a number of events if it is told to."""

    reads = Needs(calls=frozenset({Families.BACKWARD}))
    breaks: ClassVar[bool] = False

    def __init__(self) -> None:
        self.calls = 0

    def observe(self, event: Event) -> None:
        if self.breaks:
            raise RuntimeError("no")
        self.calls += 1


class Counting(FactReader):
    """Tells how many steps it saw, and how many backward passes its run state."""

    kinds = ()
    needs = Needs(kinds=STEPS, calls=frozenset({Families.BACKWARD}))
    observes = Needs(kinds=STEPS)
    uses = (Backwards,)

    def bind(self, run_states: RunStates) -> None:
        self._state = run_states.of(Backwards)
        self._steps = 0

    def observe(self, event: Event) -> None:
        self._steps += 1

    def facts(self) -> Iterable[Fact]:
        yield Fact(kind="loop.count", seen_as=f"{self._steps} steps, {self._state.calls} passes")


class Making(Counting):
    """Cannot be made."""

    def __init__(self) -> None:
        raise RuntimeError("no")


class Observing(Counting):
    """Raises at its first event."""

    def observe(self, event: Event) -> None:
        raise RuntimeError("no")


class Telling(Counting):
    """Raises when it is asked."""

    def facts(self) -> Iterable[Fact]:
        yield Fact(kind="loop.half", seen_as="told")
        raise RuntimeError("no")


def followed(
    events: Iterable[Event], readers: Iterable[type[FactReader]], rules: bool = True
) -> tuple[Engine, Report]:
    engine = Engine(rules=RULES if rules else (), followers=tuple(readers))
    for event in events:
        engine.observe(event)
    return engine, engine.finish()


def test_rules_and_facts_share_the_run_states_of_a_process(monkeypatch) -> None:
    made: Counter[type[RunState]] = Counter()
    shared = RunStates.of

    def of(self: RunStates, kind: type[RunState]) -> RunState:
        is_new = kind not in self._by_kind
        found = shared(self, kind)
        made[kind] += is_new
        return found

    monkeypatch.setattr(RunStates, "of", of)
    events = net().steps(4).build()
    rules = tuple(rule for rule in RULES if getattr(rule, "scope", "process") == "process")
    engine = Engine(rules=rules, followers=READERS)
    for event in events:
        engine.observe(event)
    assert engine.finish().facts
    used = {state for reader in READERS for state in reader.uses}
    assert used <= set(made)
    assert set(made.values()) == {1}


def test_facts_are_the_same_with_rules_and_without() -> None:
    events = net().steps(6, omit=("zero_grad",)).build()
    assert followed(events, READERS)[1].facts == followed(events, READERS, rules=False)[1].facts


def test_facts_change_no_verdict() -> None:
    events = net().steps(6, omit=("zero_grad",)).build()
    with_facts, without = followed(events, READERS)[1], followed(events, ())[1]
    assert with_facts.verdicts == without.verdicts
    assert with_facts.findings == without.findings
    assert with_facts.notes == without.notes
    assert without.facts == []


def test_facts_are_told_while_the_run_goes_on() -> None:
    engine = Engine(followers=(Counting,))
    seen = []
    for event in net().steps(2).build():
        engine.observe(event)
        if event.kind == "step":
            seen.append([fact.seen_as for fact in engine.facts()])
    assert seen == [["1 steps, 1 passes"], ["2 steps, 2 passes"]]
    assert engine.so_far().facts == ()


@pytest.mark.parametrize("broken", [Making, Observing, Telling])
def test_a_reader_that_fails_is_told_and_takes_nothing_with_it(broken: type[Counting]) -> None:
    events = net().steps(4, omit=("zero_grad",)).build()
    _, report = followed(events, [broken, *READERS])
    note = f"facts are missing: their reader {broken.__name__} failed with RuntimeError: no"
    assert note in report.notes
    assert report.verdicts["TC201"] is Verdict.VIOLATED
    healthy = followed(events, READERS)[1]
    kinds = {"loop.count", "loop.half"}
    assert [fact for fact in report.facts if fact.kind not in kinds] == healthy.facts
    assert not any(fact.kind == "loop.count" for fact in report.facts)
    assert report.unobservable == healthy.unobservable


def test_a_reader_survives_another_that_shares_its_run_state() -> None:
    _, report = followed(net().steps(2).build(), [Observing, Counting])
    assert [fact.seen_as for fact in report.facts] == ["2 steps, 2 passes"]


def test_a_run_state_that_fails_takes_its_readers_with_it(monkeypatch) -> None:
    monkeypatch.setattr(Backwards, "breaks", True)
    _, report = followed(net().steps(2).build(), [Counting], rules=False)
    assert report.facts == []
    assert [note for note in report.notes if "Counting" in note]


def test_a_reader_that_fails_on_one_rank_goes_on_on_the_other() -> None:
    class OnOneRank(Counting):
        def observe(self, event: Event) -> None:
            if event.rank == 1:
                raise RuntimeError("no")
            super().observe(event)

    def rank(number: int) -> list[Event]:
        return TraceBuilder(rank=number).process().model("Net", MLP).optimizer().steps(2).build()

    _, report = followed(merged(rank(0), rank(1)), [OnOneRank], rules=False)
    assert [(fact.seen_as, fact.ranks) for fact in report.facts] == [("2 steps, 2 passes", ())]
    assert any("OnOneRank" in note for note in report.notes)


def test_a_rule_that_fails_leaves_the_run_state_to_a_reader(monkeypatch) -> None:
    rule = BY_CODE["TC201"]
    monitor = rule.monitor

    def broken() -> object:
        made = monitor()
        monkeypatch.setattr(made, "observe", lambda _: 1 / 0)
        return made

    monkeypatch.setattr(rule, "monitor", broken)
    events = net().steps(6).build()
    engine = Engine(rules=[rule], followers=READERS)
    for event in events:
        engine.observe(event)
    report = engine.finish()
    assert report.verdicts["TC201"] is Verdict.NOT_OBSERVABLE
    assert report.facts == followed(events, READERS)[1].facts


def test_workers_of_loaders_are_not_followed() -> None:
    _, report = followed(TraceBuilder(worker=True).process(worker=True).build(), READERS)
    assert report.facts == []


def test_what_is_lost_or_not_recorded_is_no_fact() -> None:
    run = TraceBuilder().process(instruments={"schedulers": "off: asked for"})
    events = run.model("Net", MLP).optimizer().steps(4).build()
    kinds = {fact.kind for fact in followed(events, READERS)[1].facts}
    assert "loop.schedulers" not in kinds
    assert "loop.zero_grad" in kinds
