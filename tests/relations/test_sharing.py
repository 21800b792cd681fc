"""sharing: names that stand for one tensor, and names that never do."""

from __future__ import annotations

import pytest

from tests.builders import MLP, TraceBuilder
from tests.golden import Golden, mentions
from tests.learning import broken, claims, decide, learn, report_of
from traincheck.schema.findings import Symptom

TIED = {"embed.weight": "E", "mix.weight": "M", "head.weight": "H"}
NAMES = ["Lm.embed.weight", "Lm.head.weight"]
BASE = {"program": "train.py"}


def run(steps: int = 12, *, tied: bool = True, torn: bool = False) -> TraceBuilder:
    trace = TraceBuilder().process()
    trace.model("Lm", TIED)
    known = trace.models["Lm"].parameters
    if tied:
        known[NAMES[1]].identity = known[NAMES[0]].identity
        trace.state(known[NAMES[1]], "parameter", "replaced")
    trace.optimizer().steps(steps)
    if torn:
        trace.replace(NAMES[1]).steps(2)
    return trace


def test_tied_weights_are_learned_and_torn_ones_told_where_they_are_torn():
    result = learn(run().build())
    assert claims(result, "sharing", names=["Lm.embed.weight", "Lm.head.weight"])
    mine = [i for i in result.invariants if i.hypothesis.relation == "sharing"]
    assert not report_of(mine, run(30).build()).findings
    found = report_of(mine, run(5, torn=True).build()).findings
    assert (found[0].first_step, found[0].subject.variable) == (
        4,
        NAMES[1],
    )  # replaced before it ends


def test_names_that_are_not_to_share_are_told():
    claim = {**BASE, "is": "apart", "model": "Lm"}
    assert broken(decide("sharing", claim, run(2, tied=False).build())) == []
    assert broken(decide("sharing", claim, run(1).build())) == [(0, Symptom.SHARING_LOST, NAMES[0])]
    assert claims(learn(run(tied=False).build()), "sharing", model="Lm", **{"is": "apart"})


def test_an_optimizer_that_updates_what_no_model_has_is_told():
    claim = {**BASE, "is": "own"}
    healthy = TraceBuilder().process().model("Net", MLP).optimizer().steps(3)
    assert len(decide("sharing", claim, healthy.build())) == 3
    assert broken(decide("sharing", claim, healthy.build())) == []
    stale = TraceBuilder().process().model("Net", MLP).optimizer().replace("Net.fc2.weight")
    assert broken(decide("sharing", claim, stale.steps(1).build())) == [
        (0, Symptom.NOT_IN_OPTIMIZER, "Net.fc2.weight")
    ]


def test_an_optimizer_over_a_copy_is_told_by_what_it_holds(golden: Golden):
    """It does hold ``opt0[0].0``; what it lacks is a model that has it."""
    claim = {**BASE, "is": "own"}
    copied = TraceBuilder().process().model("Net", MLP).optimizer(foreign={"opt0[0].0": 99})
    assert broken(decide("sharing", claim, copied.steps(1).build())) == [
        (0, Symptom.HOLDS_OTHERS, "opt0[0].0")
    ]
    healthy = TraceBuilder().process().model("Net", MLP).optimizer().steps(12).build()
    own = [i for i in learn(healthy).invariants if i.hypothesis.params.get("is") == "own"]
    (found,) = report_of(own, copied.build()).findings
    golden(found)
    assert mentions(found, "opt0", "[0]")
    stale = TraceBuilder().process().model("Net", MLP).optimizer().replace("Net.fc2.weight")
    (found,) = report_of(own, stale.steps(1).build()).findings
    golden(found)
    assert mentions(found, "Net.fc2.weight")


def test_an_optimizer_that_does_not_step_any_more_is_left_alone():
    trace = TraceBuilder().process().model("Net", MLP).optimizer().model("Net#2", MLP)
    trace.optimizer(names=[f"Net#2.{n}" for n in MLP]).replace("Net.fc2.weight")
    trace.begin_step().zero_grad("opt1").forward("Net#2").backward([f"Net#2.{n}" for n in MLP])
    trace.optimizer_step("opt1")
    assert broken(decide("sharing", {**BASE, "is": "own"}, trace.build())) == []


def test_a_name_that_is_gone_proves_nothing():
    trace = run(1)
    known = trace.models["Lm"].parameters
    trace.state(known[NAMES[1]], "parameter", "gone")
    examples = decide("sharing", {**BASE, "names": NAMES}, trace.steps(3).build())
    assert broken(examples) == []


@pytest.mark.parametrize("params", [{}, {"is": "apart"}, {"is": "x", "model": "Net"}])
def test_parameters_that_no_version_wrote_are_refused(params):
    with pytest.raises(ValueError, match="nothing is known"):
        decide("sharing", params, [])
