"""Run state is built once, and fed before those that use it."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from tests.checking import BY_CODE, net
from traincheck.check.engine import Engine
from traincheck.readings.provider import RunState, RunStates
from traincheck.schema.claims import Needs
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict, Violation
from traincheck.schema.torch_api import Families

SOURCE = Path(__file__).parents[2] / "traincheck"
STEPS = Needs(kinds=frozenset({"step"}))


class Backwards(RunState):
    """How many calls of backward there were."""

    made: ClassVar[list[Backwards]] = []

    def __init__(self) -> None:
        self.made.append(self)
        self.calls = 0

    def observe(self, event: Event) -> None:
        self.calls += event.kind == "call"

    @property
    def incomplete(self) -> str | None:
        return "half of it was not seen"


class Broken(Backwards):
    def observe(self, event: Event) -> None:
        raise ValueError("no")


class Monitor:
    """Notes how many calls of backward its run state knew at each end of a step."""

    uses: ClassVar[Sequence[type[RunState]]] = (Backwards,)
    observes: ClassVar[Needs] = STEPS

    def __init__(self, seen: list[tuple[str, int]]) -> None:
        self.seen = seen
        self.triggered = 1

    def bind(self, run_states: RunStates) -> None:
        self.backwards = run_states.of(self.uses[0])

    def observe(self, event: Event) -> Sequence[Violation]:
        assert isinstance(self.backwards, Backwards)
        self.seen.append((event.kind, self.backwards.calls))
        return ()

    def finish(self) -> Sequence[Violation]:
        return ()


class Plugin:
    """A rule of a plug-in, which uses its own run state."""

    needs = Needs(calls=frozenset({Families.BACKWARD}))

    def __init__(self, code: str, scope: str = "process", kind: type[RunState] = Backwards) -> None:
        self.info = replace(BY_CODE["TC201"].info, check_id=code, code=code)
        self.scope, self.kind = scope, kind
        self.seen: list[tuple[str, int]] = []

    def monitor(self) -> Monitor:
        monitor = Monitor(self.seen)
        monitor.uses = (self.kind,)  # type: ignore[misc]
        return monitor


@pytest.fixture(autouse=True)
def _forget() -> None:
    Backwards.made.clear()


@pytest.mark.parametrize("scope", ["process", "run"])
def test_a_fact_is_built_once_and_fed_before_those_that_use_it(scope: str) -> None:
    rules = [Plugin("XX1", scope), Plugin("XX2", scope)]
    engine = Engine(rules=rules)
    for event in net().steps(3).build():
        engine.observe(event)
    engine.finish()
    assert len(Backwards.made) == 1
    assert rules[0].seen == rules[1].seen == [("step", 1), ("step", 2), ("step", 3)]


def test_each_process_has_its_own() -> None:
    engine = Engine(rules=[Plugin("XX1")])
    for rank in range(2):
        for event in net().steps(1).build():
            engine.observe(event.replace(rank=rank))
    assert [run_state.calls for run_state in Backwards.made] == [1, 1]


def test_a_fact_that_fails_takes_out_those_that_use_it() -> None:
    broken, other = Plugin("XX1", kind=Broken), Plugin("XX2")
    engine = Engine(rules=[broken, other])
    for event in net().steps(3).build():
        engine.observe(event)
    report = engine.finish()
    assert report.verdicts == {"XX1": Verdict.NOT_OBSERVABLE, "XX2": Verdict.HELD}
    assert "no" in report.unobservable["XX1"]
    assert len(other.seen) == 3


@pytest.mark.parametrize(("scope", "said"), [("run", 1), ("process", 0)])
def test_a_note_tells_what_could_not_be_followed(scope: str, said: int) -> None:
    engine = Engine(rules=[Plugin("XX1", scope)])
    for event in net().steps(1).build():
        engine.observe(event)
    assert engine.finish().notes.count("half of it was not seen") == said


def test_of_all_rules_one_follows_the_training() -> None:
    run_states = RunStates()
    monitors = [rule.monitor() for rule in (BY_CODE["TC101"], BY_CODE["TC201"])]
    for monitor in monitors:
        monitor.bind(run_states)  # type: ignore[attr-defined]
    assert len(list(run_states)) == 1


# What builds its own, and why: the events of one view, of one relation, or of one reader.
OWN = {
    ("Collectives", "relations/consistent.py"),
    ("KeptStates", "relations/property.py"),
    ("RankSteps", "relations/consistent.py"),  # with steps that are unrelated to other ranks
    ("RankSteps", "relations/loss.py"),
    ("RescaledGradients", "relations/property.py"),
    ("RunProgram", "relations/consistent.py"),  # knows the programs of its claims
    ("RunProgram", "relations/distinct.py"),
    # Deciders: each sees the variables that its claims ask for
    ("Variables", "relations/consistent.py"),
    ("Variables", "relations/contains/relation.py"),
    ("Variables", "relations/membership/decider.py"),
    ("Variables", "relations/periodic/relation.py"),
    ("Variables", "relations/sharing.py"),
}


def built_by(path: Path) -> set[str]:
    """The names from readings/ that a module calls."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    ours = {
        name.name
        for node in nodes
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("traincheck.readings")
        for name in node.names
    }
    called = (node.func for node in nodes if isinstance(node, ast.Call))
    return ours & {func.id for func in called if isinstance(func, ast.Name)}


def test_no_run_state_is_built_twice_for_one_process_and_view() -> None:
    kinds = {kind.__name__ for kind in RunState.__subclasses__()}
    built = {
        (name, path.relative_to(SOURCE).as_posix())
        for path in SOURCE.rglob("*.py")
        if not path.is_relative_to(SOURCE / "readings")
        for name in built_by(path) & kinds
    }
    assert built == OWN
