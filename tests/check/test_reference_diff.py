"""What the reference did beside what this run did: from learned invariants to the finding."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.builders import ADAM, LINEAR, MLP, SGD, TraceBuilder, healthy_run
from tests.check.test_finding_builder import violation
from tests.learning import learn
from traincheck.check.context.call_tree import Node, excerpt
from traincheck.check.context.violation_context import ViolationContext, diff_calls
from traincheck.check.engine import Engine
from traincheck.check.grouping.root_causes import RootCause, ViolationCount
from traincheck.check.verdicts import TraceView
from traincheck.relations.registry import RELATIONS
from traincheck.rules.table import RULES
from traincheck.schema.claims import (
    Excerpt,
    Hypothesis,
    Invariant,
    Line,
    Needs,
    Row,
    without_sampling,
)
from traincheck.schema.events import CallEvent, Event
from traincheck.schema.findings import Finding, Report, Symptom, Violation
from traincheck.schema.invariant_file import needs_json
from traincheck.schema.torch_api import Families

STEP = 20


def net(optimizer: str = ADAM, model: str = "Net") -> TraceBuilder:
    builder = TraceBuilder().process().seed().model(model, MLP).optimizer(optimizer)
    return builder.train()


def taught(*runs: list[Event]) -> list[Invariant]:
    return list(learn(*(runs or (healthy_run(STEP),))).invariants)


def check(events: list[Event], invariants: list[Invariant], rules: bool = False) -> Report:
    engine = Engine(invariants, RULES if rules else (), RELATIONS)
    for event in events:
        engine.observe(event)
    return engine.finish()


def told(finding: Finding, side: str, mark: str) -> list[str]:
    """Lines of one side with a mark, without indentation."""
    texts = [getattr(row, side) for row in finding.comparison if row.mark == mark]
    return [text.strip() for text in texts if text]


def about(report: Report, word: str) -> Finding:
    return next(f for f in report.findings if word in f.title + f.message)


def test_a_missing_call_is_marked_in_the_reference() -> None:
    events = net().steps(3).steps(5, omit={"zero_grad"}).build()
    (finding,) = check(events, taught()).findings
    assert told(finding, "reference", "-") == ["Adam.zero_grad"]
    assert told(finding, "observed", "+") == []
    same = told(finding, "observed", " ")
    assert "backward  train.py:84" in same
    assert "Adam.step  train.py:88" in same


def test_an_extra_call_is_marked_in_this_run() -> None:
    builder = net().steps(3)
    for _ in range(4):
        builder.step().backward().optimizer_step()
    found = [f for f in check(builder.build(), taught()).findings if f.comparison]
    assert found
    assert told(found[0], "observed", "+") == ["2 times:"]
    assert told(found[0], "reference", "-") == []
    assert "Adam.step  train.py:88" in told(found[0], "observed", " ")


def test_an_order_is_seen_in_both_columns() -> None:
    events = net().steps(3).steps(5, style="C").build()
    report = check(events, taught(), rules=True)
    first = report.findings[0]
    marked = told(first, "reference", "-") + told(first, "observed", "+")
    assert any("Adam.step" in line or "backward" in line for line in marked)
    rows = [
        row.observed for row in first.comparison if row.observed and "Net.fc" not in row.observed
    ]
    steps = next(i for i, text in enumerate(rows) if "Adam.step" in text)
    assert steps < next(i for i, text in enumerate(rows) if "backward" in text)


def test_variables_are_counted_on_both_sides() -> None:
    events = net().steps(3).steps(5, not_updated={"Net.fc1.weight"}).build()
    finding = about(check(events, taught()), "Net.fc1.weight")
    (row,) = finding.comparison
    assert row.mark == "~"
    assert row.reference == f"every parameter changes in all of {STEP} steps"
    assert row.observed == "Net.fc1.weight: not in 5 of 8 steps"


def test_a_rule_shows_what_the_invariants_saw() -> None:
    events = net().steps(3).steps(5, omit={"zero_grad"}).build()
    (finding,) = check(events, taught(), rules=True).findings
    assert finding.kind == "rule"
    assert "Adam.zero_grad" in told(finding, "reference", "-")
    assert {also.code for also in finding.also} >= {"contains", "order"}
    assert all(also.violations and also.first_step is not None for also in finding.also)


def test_without_an_excerpt_nothing_is_shown() -> None:
    events = net().steps(3).steps(5, omit={"optimizer_step"}).build()
    bare = [replace(invariant, excerpt=None) for invariant in taught()]
    plain = [replace(f, comparison=()) for f in check(events, taught()).findings]
    without = [replace(f, comparison=()) for f in check(events, bare).findings]
    assert [f.id for f in plain] == [f.id for f in without]
    calls = [row for f in check(events, bare).findings for row in f.comparison if row.mark != "~"]
    assert calls == []


def test_another_program_is_compared_by_landmarks_only() -> None:
    events = net(SGD, "Other").steps(3).steps(5, omit={"zero_grad"}).build()
    report = check(events, taught())
    finding = next(f for f in report.findings if told(f, "reference", "-"))
    assert told(finding, "reference", "-") == ["Adam.zero_grad"]
    assert told(finding, "observed", "+") == []
    assert not any("Linear" in (row.observed or "") for row in finding.comparison)


def test_what_the_trace_was_recorded_without_is_not_missing() -> None:
    learned = taught()
    needs = Needs()
    for invariant in learned:
        needs |= invariant.needs
    fewer = Needs(
        calls=without_sampling(needs.calls) - {f"{LINEAR}.forward", Families.MODULE},
        states=needs.states,
        kinds=needs.kinds,
        exact=needs.exact,
    )
    builder = TraceBuilder().process(recorded=needs_json(fewer)).seed()
    builder = builder.model("Net", MLP).optimizer(ADAM).train()
    events = builder.steps(3).steps(5, omit={"zero_grad"}).build()
    recorded = [
        event
        for event in events
        if not isinstance(event, CallEvent)
        or event.api in fewer.calls
        or (event.family or "") in fewer.calls
    ]
    finding = next(f for f in check(recorded, learned).findings if told(f, "reference", "-"))
    assert told(finding, "reference", "-") == ["Adam.zero_grad"]


def test_an_unfinished_step_is_no_evidence_of_what_is_missing() -> None:
    def findings(*, is_complete: bool) -> list[Finding]:
        builder = net().steps(6).begin_step().zero_grad().train(False).forward().backward()
        return check(builder.build(last_complete=is_complete), taught()).findings

    (finding,) = findings(is_complete=True)
    assert told(finding, "reference", "-") == ["Adam.step"]
    assert findings(is_complete=False) == []


def test_from_one_landmark_to_the_next_both_ends_are_shown() -> None:
    healthy = net().steps(STEP, scheduler=True).build()
    events = net().steps(3, scheduler=True)
    for _ in range(4):
        events.step(scheduler=True).scheduler_step()
    report = check(events.build(), taught(healthy))
    finding = next(f for f in report.findings if "LRScheduler.step" in f.message)
    assert told(finding, "reference", " ") == ["StepLR.step", "StepLR.step"]
    assert {"Adam.step", "backward"} <= set(told(finding, "reference", "-"))
    assert told(finding, "observed", "+") == []


def node(api: str, *children: Node, count: int = 1, note: str = "") -> Node:
    return Node(api=api, children=children, count=count, note=note)


def rows(reference: list[Node], observed: list[Node]) -> list[tuple[str, str | None, str | None]]:
    shown = excerpt(reference)
    assert shown is not None
    return [(r.mark, r.reference, r.observed) for r in diff_calls(shown, observed)]


@pytest.mark.parametrize(
    ("reference", "observed", "expected"),
    [
        ([node("m.a"), node("m.b")], [node("m.a"), node("m.b")], []),
        ([node("m.a"), node("m.b")], [node("m.a")], [(" ", "m.a", "m.a"), ("-", "m.b", None)]),
        ([node("m.a")], [node("m.a"), node("m.b")], [(" ", "m.a", "m.a"), ("+", None, "m.b")]),
        ([node("m.a", count=2)], [node("m.a", count=3)], [("~", "m.a x2", "m.a x3")]),
        ([node("m.a")], [node("m.a", note="p=1")], [("~", "m.a", "m.a (p=1)")]),
    ],
)
def test_lines_are_aligned(
    reference: list[Node], observed: list[Node], expected: list[tuple[str, str | None, str | None]]
) -> None:
    assert rows(reference, observed) == expected


def test_a_long_difference_is_cut_around_what_differs() -> None:
    reference = [node(f"m.f{i}") for i in range(12)]
    found = diff_calls(
        excerpt(reference) or pytest.fail("no excerpt"),
        [node(f"m.f{i}") for i in range(12) if i != 9] + [node(f"x.g{i}") for i in range(30)],
    )
    assert len(found) < 40
    assert found[0] == Row(reference="...", observed="...")
    assert ("-", "m.f9") in [(row.mark, row.reference) for row in found]


def two_ranks(*apis: tuple[str, ...]) -> ViolationContext:
    """A witness of one step of each rank."""
    claim = Hypothesis(relation="contains", params={"outer": "step", "inner": Families.BACKWARD})
    shown = Excerpt(lines=(Line(depth=0, api="m.a"), Line(depth=0, api="m.b")), depth=0)
    needs = Needs(calls=frozenset({"m.a", "m.b"}))
    context = ViolationContext([Invariant(id="i", hypothesis=claim, needs=needs, excerpt=shown)])
    for rank, called in enumerate(apis):
        recent = context.recent_calls(rank, TraceView())
        assert recent is not None
        for n, api in enumerate(called):
            event = CallEvent(n, n, 0, "train", rank, "p1-t0", api=api, span=n, start_ns=n)
            recent.calls.append(event)
        context.end_step(recent, 0)
    return context


def root_cause(found: Violation) -> RootCause:
    return RootCause(found.check_id, found.symptom, [ViolationCount.first_of(found)])


def plain(rows: tuple[Row, ...]) -> list[tuple[str, str | None, str | None]]:
    return [(row.mark, row.reference, row.observed) for row in rows]


def test_the_rank_that_is_named_is_shown() -> None:
    context = two_ranks(("m.a", "m.b"), ("m.b",))
    found = violation("i", Symptom.MISSING_CALL, api="m.a", rank=1)
    context.on_violation(found, None)
    cause = root_cause(found)
    assert plain(context.compare(cause, 1)) == [("-", "m.a", None), (" ", "m.b", "m.b")]
    assert context.compare_ranks(cause) is None


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_that_differ_are_beside_each_other(rank: int) -> None:
    context = two_ranks(("m.a", "m.step"), ("m.a",))
    found = violation("TC401", Symptom.RANKS_DIFFER, "Net.a", rank=rank)
    context.on_violation(found, None)
    beside = context.compare_ranks(root_cause(found))
    assert beside is not None
    assert beside[0] == ("rank 0", "rank 1")
    assert plain(beside[1]) == [(" ", "m.a", "m.a"), ("-", "m.step", None)]


def test_ranks_that_call_the_same_are_not_shown() -> None:
    context = two_ranks(("m.a",), ("m.a",))
    found = violation("TC401", Symptom.RANKS_DIFFER, "Net.a", rank=1)
    context.on_violation(found, None)
    assert context.compare_ranks(root_cause(found)) is None


def test_old_steps_are_let_go() -> None:
    context = two_ranks(("m.a", "m.b"))
    recent = context.recent_calls(1, TraceView())
    assert recent is not None
    for step in range(5):
        for n, api in enumerate(("m.a", "m.b")):
            recent.calls.append(CallEvent(n, n, step, "train", 1, "p1-t0", api=api, span=n))
        context.end_step(recent, step)
    assert [call.step for call in recent.calls] == [3, 3, 4, 4]
    assert [recent.is_complete(step) for step in range(5)] == [False, False, False, True, True]
    late = violation("i", Symptom.MISSING_CALL, api="m.a", step=1, rank=1)
    context.on_violation(late, recent)
    assert context.compare(root_cause(late), 5) == ()
