"""What a recorded view can decide, and the four verdicts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import healthy_run
from tests.relations.test_contract import learned
from traincheck.check.engine import Engine
from traincheck.check.verdicts import (
    TraceView,
    instrument_named,
    reasons,
    verdicts_of,
)
from traincheck.presets import preset_names, preset_path
from traincheck.relations.registry import RELATIONS
from traincheck.rules.table import RULES
from traincheck.schema.claims import Needs, sampled, without_sampling
from traincheck.schema.events import MarkEvent
from traincheck.schema.findings import Verdict
from traincheck.schema.instruments import FEEDS
from traincheck.schema.invariant_file import needs_json, read_invariants
from traincheck.schema.observations.registry import OBSERVATIONS
from traincheck.schema.torch_api import Families

HEAD = (0, 0, 0, "init", 0, "p1-t0")
STEP = frozenset({Families.OPTIMIZER_STEP})


def view(recorded: Needs | None = None, **instruments: str) -> TraceView:
    data = {
        "recorded": None if recorded is None else needs_json(recorded),
        "instruments": instruments,
    }
    return TraceView.from_mark(MarkEvent(*HEAD, text="process", data=data))


def test_a_full_view_serves_everything() -> None:
    full = view(modules="on", optimizers="on")
    assert all(full.missing_for(rule.needs) is None for rule in RULES)


def test_a_mark_without_a_view_is_taken_as_full() -> None:
    bare = TraceView.from_mark(MarkEvent(*HEAD, text="process"))
    assert bare.missing_for(Needs(calls=STEP)) is None


def test_a_selective_view_serves_what_it_was_recorded_for() -> None:
    for rule in RULES:
        assert view(rule.needs).missing_for(rule.needs) is None


def test_calls_of_some_steps_do_not_serve_those_who_want_all() -> None:
    name = "torch.nn.modules.linear.Linear.forward"
    all_of_them, rare = Needs(calls=frozenset({name})), Needs(calls=sampled(name))
    assert view(all_of_them).missing_for(rare) is None
    assert view(rare).missing_for(rare) is None
    assert (
        view(rare).missing_for(all_of_them) == f"the trace was recorded without all calls of {name}"
    )
    assert [view(v).samples(n) for v in (rare, all_of_them) for n in (rare, all_of_them)] == [
        True, True, False, False,
    ]  # fmt: skip
    assert not view().samples(rare)


@pytest.mark.parametrize(
    ("told", "takes"), [([2, 5], {0, 1, 5}), (None, {0, 1, 2, 3}), (["a"], {0, 1, 2, 3})]
)
def test_a_trace_tells_which_steps_are_whole(told: Any, takes: set[int]) -> None:
    name = "torch.nn.modules.linear.Linear.forward"
    data = {"recorded": needs_json(Needs(calls=sampled(name))), "some": told}
    found = TraceView.from_mark(MarkEvent(*HEAD, text="process", data=data))
    assert {step for step in range(8) if found.schedule.includes(step)} == takes
    assert {step for step in range(8) if found.recorded_in(step, "train") != Needs()} == takes
    assert found.recorded_in(7, "eval") == Needs(calls=frozenset({name}))


@pytest.mark.parametrize("recorded", [frozenset({"gradient"}), sampled("gradient")])
def test_numbers_of_all_steps_serve_those_who_want_some(recorded: frozenset[str]) -> None:
    assert view(Needs(stats=recorded)).missing_for(Needs(stats=sampled("gradient"))) is None


@pytest.mark.parametrize(
    ("recorded", "asked", "named"),
    [
        (Needs(), Needs(calls=STEP), "Optimizer.step"),
        (Needs(calls=STEP), Needs(states=frozenset({"gradient@backward"})), "gradient@backward"),
        (
            Needs(states=frozenset({"gradient@step"})),
            Needs(states=frozenset({"gradient@backward"})),
            "gradient@backward",
        ),
        (Needs(), Needs(kinds=frozenset({"batch", "step"})), "batch"),
        (
            Needs(states=frozenset({"gradient@backward"})),
            Needs(states=frozenset({"gradient@backward"}), exact=True),
            "exact fingerprints",
        ),
        (
            Needs(stats=sampled("gradient")),
            Needs(stats=frozenset({"gradient"})),
            "numbers of gradient",
        ),
        (Needs(), Needs(stats=sampled("batch")), "numbers of batch"),
    ],
)
def test_what_a_view_lacks_is_named(recorded: Needs, asked: Needs, named: str) -> None:
    reason = view(recorded).missing_for(asked)
    assert reason is not None
    assert named in reason


@pytest.mark.parametrize(
    ("recorded", "asked"),
    [
        (
            Needs(states=frozenset({"gradient@*"})),
            Needs(states=frozenset({"gradient@backward"})),
        ),
        (Needs(), Needs(states=frozenset({"parameter@new"}))),
        (Needs(), Needs(kinds=frozenset({"step", "stage", "mark"}))),
        (Needs(exact=True), Needs()),
        (Needs(calls=frozenset({"*"})), Needs(calls=STEP)),
    ],
)
def test_what_a_view_holds_is_served(recorded: Needs, asked: Needs) -> None:
    assert view(recorded).missing_for(asked) is None


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("autograd", Needs(calls=frozenset({Families.BACKWARD}))),
        ("autograd", Needs(states=frozenset({"gradient@backward"}))),
        ("optimizers", Needs(kinds=frozenset({"optimizer"}))),
        ("optimizers", Needs(calls=STEP)),
        ("modules", Needs(calls=frozenset({"torch.nn.modules.linear.Linear.forward"}))),
        ("functional", Needs(calls=frozenset({"torch.nn.functional.dropout"}))),
        ("data", Needs(kinds=frozenset({"batch"}))),
    ],
)
def test_an_instrument_that_is_off_is_named_with_its_reason(name: str, asked: Needs) -> None:
    reason = view(**{name: "off: ImportError('x')"}).missing_for(asked)
    assert reason == f"instrument {name} was off (ImportError('x'))"
    assert view(**{name: "on"}).missing_for(asked) is None
    assert view(rng="off: x").missing_for(asked) is None


def test_a_view_that_cannot_be_read_holds_nothing() -> None:
    mark = MarkEvent(*HEAD, text="process", data={"recorded": {"calls": 3}})
    assert TraceView.from_mark(mark).missing_for(Needs(calls=STEP)) is not None


def test_the_instruments_are_those_there_are() -> None:
    table = pytest.importorskip("traincheck.collect.instruments.registry")
    assert {instrument.name for instrument in table.INSTRUMENTS} == set(FEEDS)


def test_an_instrument_is_known_by_the_name_of_its_methods() -> None:
    assert instrument_named("autograd") == "autograd"
    assert instrument_named("Optimizers._describe_step") == "optimizers"
    assert instrument_named("function_wrapper.<locals>.describe") is None


def test_verdicts() -> None:
    verdicts = verdicts_of(
        ["broken", "broken unseen", "held", "idle", "unseen", "seen for a while"],
        violated={"broken": 1, "broken unseen": 2},
        triggered={"broken": 3, "held": 2, "idle": 0, "seen for a while": 1},
        unobservable={"unseen": "x", "broken unseen": "x", "seen for a while": "x"},
    )
    assert verdicts == {
        "broken": Verdict.VIOLATED,
        "broken unseen": Verdict.VIOLATED,
        "held": Verdict.HELD,
        "idle": Verdict.NOT_TRIGGERED,
        "unseen": Verdict.NOT_OBSERVABLE,
        "seen for a while": Verdict.NOT_OBSERVABLE,
    }


def test_reasons_are_counted() -> None:
    assert reasons({"a": "no x", "b": "no y", "c": "no x"}) == [
        "2 checks not observable: no x",
        "1 check not observable: no y",
    ]


def all_needs() -> dict[str, Needs]:
    """What each rule, each shipped invariant and each claim of a rich run needs."""
    found = {rule.info.code: rule.needs for rule in RULES}
    for name in preset_names():
        for one in read_invariants(preset_path(name)):
            found[f"{name}: {one.text}"] = RELATIONS[one.hypothesis.relation].needs(one.hypothesis)
    for one in learned().invariants:
        found[f"learned: {one.text}"] = RELATIONS[one.hypothesis.relation].needs(one.hypothesis)
    return found


def unproduced(needs: Needs) -> list[str]:
    """Needs that no instrument serves. A check with one would never be *not observable*."""
    feeds = FEEDS.values()
    known = frozenset[str]().union(*(feed.kinds for feed in feeds)) | {
        "step",
        "stage",
        "mark",
        "probe",
    }
    return sorted(
        [
            *(c for c in without_sampling(needs.calls) if not any(f.has_call(c) for f in feeds)),
            *(s for s in without_sampling(needs.states) if not any(f.has_state(s) for f in feeds)),
            *(s for s in without_sampling(needs.stats) if not any(f.has_stat(s) for f in feeds)),
            *(needs.kinds - known),
        ]
    )


NEEDS = all_needs()


def test_whatever_a_check_needs_some_instrument_feeds() -> None:
    assert {name: left for name, needs in NEEDS.items() if (left := unproduced(needs))} == {}


def test_what_no_instrument_feeds_is_named() -> None:
    needs = Needs(
        calls=sampled("torch.unknown"), states=frozenset({"teacher@new"}), kinds=frozenset({"look"})
    )
    assert unproduced(needs) == ["look", "teacher@new", "torch.unknown"]


def test_every_state_is_documented() -> None:
    asked = {state for needs in NEEDS.values() for state in without_sampling(needs.states)}
    documented = Needs.__doc__ or ""
    observed = {observation.need for observation in OBSERVATIONS}
    moments = {"forward", "backward", "step", "zero_grad", "new"}
    assert not {
        state
        for state in asked - observed
        if f"``{state}``" not in documented and state.partition("@")[2] not in moments
    }


@pytest.mark.parametrize(
    ("off", "codes"),
    [
        ("modules", {"TC327"}),
        ("checkpoint", {"TC611"}),
        ("distributed", {"TC413", "TC401"}),
        ("autograd", {"TC331", "TC337"}),
        ("functional", {"TC705", "TC311"}),
    ],
)
def test_checks_that_an_instrument_feeds_are_not_observable_without_it(
    off: str, codes: set[str]
) -> None:
    engine = Engine(rules=RULES)
    first, *rest = healthy_run(4)
    assert isinstance(first, MarkEvent)
    engine.observe(first.replace(data={**first.data, "instruments": {off: "off: it failed"}}))
    for event in rest:
        engine.observe(event)
    verdicts = engine.finish().verdicts
    assert {verdicts[code] for code in codes} == {Verdict.NOT_OBSERVABLE}
