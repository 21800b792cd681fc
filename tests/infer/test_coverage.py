"""Coverage: what a run could have shown; true if it is not known."""

from __future__ import annotations

import pytest

from tests.builders import BN_BUFFERS, MLP_BN, TraceBuilder
from tests.learning import Fed
from traincheck.infer.coverage import CoverageCollector, RunCoverage, union
from traincheck.relations.registry import RELATIONS
from traincheck.schema.claims import Hypothesis
from traincheck.schema.events import CollectiveEvent
from traincheck.schema.torch_api import Families


def coverage_of(events) -> RunCoverage:
    collector = Fed(CoverageCollector())
    for event in events:
        collector.observe(event)
    return collector.part.coverage()


RUN = coverage_of(
    TraceBuilder()
    .process()
    .model("Net", MLP_BN, buffers=BN_BUFFERS)
    .optimizer()
    .train()
    .steps(2)
    .build()
)
_STEP = Families.OPTIMIZER_STEP
LINEAR = "torch.nn.modules.linear.Linear"


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"program": "train.py"}, True),
        ({"program": "train.py#123456abcdef"}, False),
        ({"program": "other.py"}, False),
        ({"api": Families.BACKWARD}, True),
        ({"api": "torch.nn.functional.mish"}, False),
        ({"outer": "step", "inner": "anything"}, True),
        ({"outer": Families.OPTIMIZER_STEP, "role": "parameter"}, True),
        ({"outer": Families.SCALER_STEP, "role": "parameter"}, False),
        ({"after": Families.OPTIMIZER_STEP, "before": Families.EVAL}, False),
        ({"api": Families.BACKWARD, "autocast": "bfloat16"}, False),
        ({"role": "gradient"}, True),
        ({"role": "parameter", "leaf": "weight", "module_class": LINEAR}, True),
        ({"role": "parameter", "leaf": "weight", "module_class": "Conv"}, False),
        ({"role": "buffer", "model": "Net"}, True),
        ({"role": "buffer", "model": "Other"}, False),
        ({"under": "Net.fc[0-1]"}, True),
        ({"under": "Other.fc[0-1]"}, False),
        ({"module": "Net"}, True),
        ({"module": "Net.nowhere"}, False),
        ({"what": "no parameter that is known"}, True),
        ({}, True),
    ],
    ids=str,
)
def test_what_a_claim_speaks_of(params, expected):
    claim = Hypothesis(relation="order", params=params)
    assert RUN.could_observe(RELATIONS["order"], claim) is expected


@pytest.mark.parametrize(
    ("relation", "params"),
    [
        ("contains", {"outer": "step", "inner": Families.ZERO_GRAD}),
        ("contains", {"outer": "step", "inner": Families.MODULE, "args": {"training": True}}),
        ("order", {"after": _STEP, "needs": Families.ZERO_GRAD, "before": _STEP}),
    ],
    ids=str,
)
def test_a_run_without_backward_says_nothing_of_how_gradients_are_added(relation, params):
    claim = Hypothesis(relation=relation, params=params)
    trace = TraceBuilder().process().model("Net", MLP_BN).optimizer().train()
    for _ in range(2):
        trace.begin_step().forward("Net").zero_grad().optimizer_step().end_step()
    assert RUN.could_observe(RELATIONS[relation], claim)
    assert not coverage_of(trace.build()).could_observe(RELATIONS[relation], claim)


def test_a_relation_may_say_it_in_these_words():
    class Own:
        def antecedent(self, claim):
            return {"api": claim.params["of"]}

    claim = Hypothesis(relation="own", params={"of": "torch.nn.functional.mish"})
    assert not RUN.could_observe(Own(), claim)


def test_a_call_may_stand_for_another():
    scaled = RunCoverage(calls=frozenset({"x"}))
    trace = TraceBuilder().process().model("Net", MLP_BN).optimizer().train()
    for _ in range(2):
        trace.begin_step().zero_grad().forward("Net").backward()
        trace.call(Families.CLIP_VALUE, family=Families.CLIP_VALUE)
        trace.optimizer_step()
    both = union(scaled, coverage_of(trace.build()))
    assert {"x", Families.CLIP_VALUE, Families.CLIP_NORM} <= both.calls


def test_what_ranks_do_together_is_a_call():
    trace = TraceBuilder().process()
    trace.add(CollectiveEvent, op="all_reduce", group="default", number=0)
    assert "torch.distributed.all_reduce" in coverage_of(trace.build()).calls
