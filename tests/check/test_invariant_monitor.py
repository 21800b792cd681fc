"""The gate: preconditions, counts, violations."""

from __future__ import annotations

import pickle

from tests.builders import healthy_run
from tests.check.fakes import EverySteps, invariant
from traincheck.check.monitors.invariant_monitor import InvariantMonitor
from traincheck.schema.claims import Condition, Invariant, Precondition
from traincheck.schema.findings import Violation

ODD = Precondition(clauses=((Condition(feature="step_is_odd", op="==", value=True),),))
NEVER = Precondition(clauses=((Condition(feature="unheard_of", op="!=", value=1),),))


def run(*invariants: Invariant, steps: int = 4) -> tuple[InvariantMonitor, list[Violation]]:
    gate = InvariantMonitor(EverySteps(), invariants)
    found = [v for e in healthy_run(steps) if e.kind == "step" for v in gate.observe(e)]
    return gate, found + list(gate.finish())


def test_counts_examples_and_keeps_quiet_when_they_hold() -> None:
    gate, found = run(invariant("a"), invariant("b", "forward"))
    assert found == []
    assert gate.triggered_by_check() == {"a": 4, "b": 4}
    assert gate.triggered == 8


def test_makes_a_violation_of_a_negative_example() -> None:
    _, found = run(invariant("a", value=2), invariant("b"))
    assert [(v.check_id, v.step) for v in found] == [("a", 0), ("a", 1), ("a", 2), ("a", 3)]
    first = found[0]
    assert (first.expected, first.observed) == ("2 backward", "1 backward")
    assert first.message == "every step has 2 backward"
    assert first.evidence[0].kind == "step"


def test_a_precondition_that_does_not_hold_makes_no_example() -> None:
    gate, found = run(
        invariant("odd", value=2, precondition=ODD),
        invariant("never", value=2, precondition=NEVER),
        invariant("also odd", precondition=ODD),
    )
    assert [(v.check_id, v.step) for v in found] == [("odd", 1), ("odd", 3)]
    assert gate.triggered_by_check() == {"odd": 2, "never": 0, "also odd": 2}


def test_what_ends_with_the_run_counts() -> None:
    gate, found = run(invariant("a", breaks_at_end=True))
    assert [(v.check_id, v.step) for v in found] == [("a", None)]
    assert gate.triggered_by_check() == {"a": 5}


def test_may_be_sent_to_another_process() -> None:
    gate, _ = run(invariant("a", value=2))
    again = pickle.loads(pickle.dumps(gate))
    assert again.triggered_by_check() == {"a": 4}
