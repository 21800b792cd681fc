"""What every relation owes: documentation, a row in the table, the same answer whoever asks."""

from __future__ import annotations

import inspect
import pickle
import re
from functools import cache
from importlib.metadata import EntryPoint
from itertools import pairwise

import jsonschema
import orjson
import pytest

from tests.builders import BN_BUFFERS, MLP_BN, TraceBuilder
from tests.golden import Golden
from tests.learning import Fed, decide, learn, report_of
from traincheck import packages
from traincheck.infer.engine import InferResult
from traincheck.readings.provider import Router, roles_of
from traincheck.relations import registry
from traincheck.relations.order import Order
from traincheck.relations.registry import BUILT_IN, RELATIONS
from traincheck.schema.claims import Hypothesis
from traincheck.schema.events import StateEvent
from traincheck.schema.findings import Verdict
from traincheck.schema.invariant_file import SCHEMA_FILE, read_invariants, write_invariants
from traincheck.schema.protocols import Relation
from traincheck.schema.torch_api import Families
from traincheck.schema.values import TensorSummary, tensor_json

HEADINGS = ["Claims", "Example", "Evidence", "Chance", "Not claimed"]
LOSS = {"cross_entropy": 0.3, "kl_div": 0.7}.items()
relations = pytest.mark.parametrize("relation", BUILT_IN, ids=lambda relation: relation.name)


def copy(trace: TraceBuilder, source: str, target: str) -> None:
    """The parameters of one model are copied into another."""
    last = {e.name: e for e in trace.events if e.kind == "state" and e.role == "parameter"}
    for name in [name for name in last if name.startswith(f"{source}.")]:
        kept = ("role", "summary", "module_class", "requires_grad")
        known = {key: getattr(last[name], key) for key in kept}
        path = f"{target}.{name.partition('.')[2]}"
        trace.add(StateEvent, name=path, change="content", identity=hash(path), **known)


def rich_run() -> TraceBuilder:
    """A run about which every relation has something to say."""
    trace = TraceBuilder().process().model("Net", MLP_BN, buffers=BN_BUFFERS)
    for variable in trace.models["Net"].parameters.values():
        filled = {"dtype": "float32", "shape": [4], "identity": variable.identity}
        for function in ("kaiming_uniform_", "uniform_"):
            trace.call(f"torch.nn.init.{function}", result=filled)
    trace.model("Target", {"w": "Q"}).optimizer(names=[f"Net.{name}" for name in MLP_BN]).train()
    for number in range(40):
        trace.begin_step().batch().zero_grad().forward("Net", batch_size=64 - number % 2)
        target = {"dtype": "int64", "shape": [64], "stats": {"shifted": 1}}
        trace.call("torch.nn.functional.cross_entropy", args={"target": target})
        trace.backward([f"Net.{name}" for name in MLP_BN])
        parts = [{"name": n, "where": "", "weight": w, "elements": 64} for n, w in LOSS]
        trace.mark("loss terms", terms=parts, constants=[])
        trace.call(Families.CLIP_NORM, args={"max_norm": 1.0}, result=2.5).optimizer_step()
        leaf = tensor_json(TensorSummary("float32", (64, 10)))
        trace.batch("loader1", leaves={"0": leaf}, samples=[str(number)])
        if number % 4 == 0:
            trace.write("Target.w")
            copy(trace, "Net", "Copy")
        if number % 10 == 9:
            trace.load("Net", missing=[], unexpected=[], matched=6, entries=6)
            trace.load("torch.optim.adam.Adam", owner="opt0", entries=6)
        if number % 3 == 2:
            trace.evaluate()
    return trace


RICH = rich_run().build()


@cache
def learned() -> InferResult:
    """All that the rich run teaches."""
    return learn(RICH)


def of(relation) -> list[Hypothesis]:
    return [i.hypothesis for i in learned().invariants if i.hypothesis.relation == relation.name]


@relations
def test_it_is_documented(relation):
    text = inspect.getdoc(type(relation))
    assert re.findall(r"^([A-Z][a-z ]+):$", text, re.MULTILINE) == HEADINGS


@relations
def test_it_learns_something_from_a_rich_run(relation):
    assert of(relation)


@relations
def test_a_run_it_learned_from_does_not_break_it(relation):
    mine = [i for i in learned().invariants if i.hypothesis.relation == relation.name]
    verdicts = report_of(mine, RICH).verdicts
    assert set(verdicts.values()) == {Verdict.HELD}
    assert len(verdicts) == len(mine)


@relations
def test_its_decider_can_be_pickled_in_mid_run(relation):
    claims = of(relation)
    half = len(RICH) // 2

    def examples(decider, events):
        return [(i, e.holds, e.context) for event in events for i, e in decider.observe(event)]

    whole = Fed(relation.decider(claims))
    examples(whole, RICH[:half])
    restored = pickle.loads(pickle.dumps(whole))
    assert examples(restored, RICH[half:]) == examples(whole, RICH[half:])


@relations
def test_one_claim_is_decided_as_among_many(relation):
    claims = of(relation)
    decider = Fed(relation.decider(claims))
    together: dict[int, list[bool]] = {}
    for event in RICH:
        for index, example in decider.observe(event):
            together.setdefault(index, []).append(example.holds)
    for index, claim in enumerate(claims):
        alone = decide(relation.name, dict(claim.params), RICH)
        assert [example.holds for example in alone] == together.get(index, [])


@relations
def test_examples_do_not_depend_on_what_it_did_not_ask_for(relation):
    for claim in of(relation):
        needs = relation.needs(claim)
        roles = {state.partition("@")[0] for state in needs.states}

        def is_needed(event, needs=needs, roles=roles):
            if event.kind == "call":
                return needs.delivers(event.api) or event.family in needs.calls
            return event.role in roles if event.kind == "state" else event.kind in needs.kinds

        params = dict(claim.params)
        less = decide(relation.name, params, filter(is_needed, RICH))
        assert [e.holds for e in less] == [e.holds for e in decide(relation.name, params, RICH)]


@relations
def test_its_proposer_makes_nothing_of_the_events_that_it_does_not_observe(relation):
    whole, fed = Fed(relation.proposer()), Fed(relation.proposer())
    router = Router([*fed.run_states.receivers(), (fed.part.observes, fed.part.observe)])
    for event in rich_run().build():
        whole.observe(event)
        for observe in router.route(event):
            observe(event)
    assert list(fed.part.hypotheses()) == list(whole.part.hypotheses())
    assert list(fed.part.observed_terms()) == list(whole.part.observed_terms())


def test_most_changes_of_state_reach_few_proposers():
    """They are nine events in ten."""
    roles = {r.name: roles_of(r.proposer().observes, frozenset({"*@new"})) for r in BUILT_IN}
    of_state = {name for name, found in roles.items() if "optimizer_state" in found}
    assert of_state == {"consistent", "periodic"}
    assert not [r.name for r in BUILT_IN if "state" in r.proposer().observes.kinds]


@relations
def test_it_says_each_claim_in_words_of_its_own(relation):
    said = [relation.text(claim) for claim in of(relation)]
    assert all(text and text[-1] not in ".!" for text in said)
    for claim, text in zip(of(relation), said):
        info = relation.info(claim, "id", text)
        assert (info.check_id, info.kind, info.code, info.title) == (
            "id",
            "invariant",
            relation.name,
            text,
        )


@relations
def test_the_sentences_of_its_claims(relation: Relation, golden: Golden) -> None:
    golden.each(i for i in learned().invariants if i.hypothesis.relation == relation.name)


@relations
def test_chance_falls_with_every_example_and_a_claim_implies_itself(relation):
    for claim in of(relation):
        chances = [relation.chance(claim, n) for n in range(20)]
        assert all(0 <= b < a <= 1 for a, b in pairwise(chances))
        assert relation.implies(claim, claim)


def test_what_is_learned_survives_the_file(tmp_path):
    path = tmp_path / "invariant.json"
    write_invariants(path, learned().invariants, {}, learned().runs)
    assert read_invariants(path) == learned().invariants
    jsonschema.validate(orjson.loads(path.read_bytes()), orjson.loads(SCHEMA_FILE.read_bytes()))
    again = report_of(read_invariants(path), RICH)
    assert set(again.verdicts.values()) == {Verdict.HELD}


class Another(Order):
    """A relation of another package."""

    name = "another"


def test_installed_packages_may_add_relations(monkeypatch, caplog):
    points = [
        EntryPoint("b", f"{__name__}:Another", "traincheck.relations"),
        EntryPoint("a", "no_such_package:Relation", "traincheck.relations"),
    ]
    monkeypatch.setattr(packages, "entry_points", lambda group: points)
    monkeypatch.setitem(__import__("sys").modules, __name__, inspect.getmodule(Another))
    table = registry._all_relations()
    assert list(table) == [*RELATIONS, "another"]
    assert "cannot be used" in caplog.text
