"""Violations are grouped by what they are about, never by the sentences that say so."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import ModuleType

import pytest

from tests.check.test_finding_builder import blind, groups
from tests.checking import net
from tests.learning import learn
from tests.relations.test_loss import updates
from tests.rules.torch_warnings.test_tc951_torch_advice import SCHEDULER
from tests.rules.window import schedule
from traincheck.check import engine as engines
from traincheck.check.engine import Engine
from traincheck.check.finding_builder import FindingBuilder
from traincheck.check.grouping import causes
from traincheck.check.grouping import invariant_effects as differences
from traincheck.check.grouping import root_causes as folding
from traincheck.relations.registry import RELATIONS
from traincheck.rules.table import RULES
from traincheck.schema.claims import Invariant
from traincheck.schema.events import Event
from traincheck.schema.findings import Finding, Topic, Violation


def scheduled(steps: int, *, updates: int | None = None) -> list[Event]:
    """A loop with a scheduler whose optimizer steps in the first ``updates`` steps."""
    trace = net()
    for number in range(steps):
        trace.begin_step().zero_grad().forward().backward()
        if updates is None or number < updates:
            trace.optimizer_step()
        schedule(trace)
    return trace.build()


def warned(steps: int = 4) -> list[Event]:
    """A loop whose scheduler comes before its optimizer, and what torch says of it."""
    trace = net().warning("UserWarning", SCHEDULER)
    for _ in range(steps):
        schedule(trace.begin_step().zero_grad().forward().backward()).optimizer_step()
    return trace.build()


SENTENCES = {"expected", "observed", "message", "title", "likely_cause", "fix", "headline"}
# The reference run, the run at fault, and the topic that makes one fault of two violations.
RUNS = {
    "a scheduler is stepped without its optimizer": (
        scheduled(12),
        scheduled(12, updates=3),
        Topic.ORDER,
    ),
    "the loss is not divided, and its graph is cut": (
        updates(20, batches=2, factor=0.5).build(),
        updates(20, batches=2, zero_grads=0).build(),
        Topic.MAGNITUDE,
    ),
    "torch warns of a scheduler that comes too early": ([], warned(), Topic.SCHEDULER),
}
runs = pytest.mark.parametrize("name", sorted(RUNS))


def found_in(events: Sequence[Event], invariants: Sequence[Invariant]) -> Sequence[Finding]:
    engine = Engine(invariants, RULES, RELATIONS)
    for event in events:
        engine.observe(event)
    return engine.finish().findings


def learned(name: str) -> Sequence[Invariant]:
    reference = RUNS[name][0]
    return learn(reference).invariants if reference else ()


def give(monkeypatch: pytest.MonkeyPatch, change: Callable[[Violation], Violation]) -> None:
    """Let the engine change each violation before it is counted."""

    class Book(FindingBuilder):
        def add(self, violation: Violation) -> bool:
            return super().add(change(violation))

    monkeypatch.setattr(engines, "FindingBuilder", Book)


@runs
def test_other_sentences_give_the_same_groups(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    invariants, broken = learned(name), RUNS[name][1]
    found = found_in(broken, invariants)
    give(monkeypatch, blind)
    blinded = found_in(broken, invariants)
    assert {finding.expected for finding in blinded} == {"x"}
    assert groups(blinded) == groups(found)


@runs
def test_without_its_topic_a_violation_is_a_fault_of_its_own(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    invariants, (_, broken, topic) = learned(name), RUNS[name]
    found = found_in(broken, invariants)
    give(monkeypatch, lambda v: replace(v, topic=None) if v.topic is topic else v)
    assert len(found_in(broken, invariants)) > len(found)


@pytest.mark.parametrize("module", [causes, differences, folding])
def test_grouping_reads_no_sentence(module: ModuleType) -> None:
    nodes = ast.walk(ast.parse(inspect.getsource(module)))
    assert not {node.attr for node in nodes if isinstance(node, ast.Attribute)} & SENTENCES
