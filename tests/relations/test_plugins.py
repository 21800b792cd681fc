"""Relations of other packages: members with a default may be missing."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from tests.builders import healthy_run
from tests.check.fakes import EverySteps
from tests.learning import Recorded
from traincheck import packages
from traincheck.check.engine import Engine
from traincheck.infer.engine import Run, infer
from traincheck.relations import registry
from traincheck.relations.base import ProposerBase, RelationBase
from traincheck.relations.registry import PluginProposer, PluginRelation
from traincheck.schema.claims import Hypothesis, Needs
from traincheck.schema.events import Event, StepEvent
from traincheck.schema.findings import Verdict


class Proposer:
    """Has only what a proposer needs."""

    def __init__(self) -> None:
        self.steps = 0

    def observe(self, event: Event) -> None:
        self.steps += isinstance(event, StepEvent)

    def hypotheses(self) -> Iterable[Hypothesis]:
        if self.steps:
            yield Hypothesis(relation="every-step", params={"counter": "backward", "value": 1})


class Plugin(EverySteps):
    """Has only what a relation needs; `EverySteps` inherits from nothing."""

    def proposer(self) -> Proposer:
        return Proposer()


class Full(Plugin):
    """Has its own members."""

    scope = "run"

    def antecedent(self, claim: Hypothesis) -> dict[str, Any]:
        return {"api": "mine"}

    def min_programs(self, claim: Hypothesis) -> int | None:
        return 2

    def proposer(self) -> Any:
        proposer = super().proposer()
        proposer.observes = Needs(kinds=frozenset({"call"}))  # type: ignore[attr-defined]
        return proposer


def installed(monkeypatch: pytest.MonkeyPatch, plugins: Sequence[type]) -> dict[str, Any]:
    found = [EntryPoint(one.__name__, "somewhere:it", "traincheck.relations") for one in plugins]
    by_name = {one.__name__: one for one in plugins}
    monkeypatch.setattr(packages, "entry_points", lambda group: found)
    monkeypatch.setattr(EntryPoint, "load", lambda self: by_name[self.name])
    return registry._all_relations()


def test_the_bases_are_missing_from_the_plugin() -> None:
    optional = {*vars(RelationBase), *vars(ProposerBase)} - {*vars(EverySteps), *vars(object)}
    optional = {name for name in optional if not name.startswith("_")}
    assert {"scope", "antecedent", "supports", "min_programs", "observes"} <= optional
    assert not [name for name in optional if hasattr(Plugin(), name) or hasattr(Proposer(), name)]


def test_a_plugin_without_them_is_learned_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    table = installed(monkeypatch, [Plugin])
    relations = {"every-step": table["every-step"]}
    result = infer([Run(name="a", source=Recorded(healthy_run(8)))], relations=relations)
    (invariant,) = result.invariants
    assert invariant.hypothesis.params == {"counter": "backward", "value": 1}
    engine = Engine([invariant], (), relations)
    for event in healthy_run(8):
        engine.observe(event)
    assert engine.finish().verdicts == {invariant.id: Verdict.HELD}


def test_a_plugin_keeps_its_own_members(monkeypatch: pytest.MonkeyPatch) -> None:
    relation = installed(monkeypatch, [Full])["every-step"]
    claim = Hypothesis(relation="every-step", params={"counter": "backward", "value": 1})
    assert relation.scope == "run"
    assert relation.antecedent(claim) == {"api": "mine"}
    assert relation.min_programs(claim) == 2
    assert relation.proposer().observes == Needs(kinds=frozenset({"call"}))
    assert relation.text(claim) == Full().text(claim)


def test_a_plugin_goes_to_other_processes() -> None:
    relation = pickle.loads(pickle.dumps(PluginRelation(Plugin())))
    assert isinstance(relation.proposer(), PluginProposer)
    assert relation.supports(*(Hypothesis(relation="x", params={}),) * 2, ())
