"""Folding of what differs from the references into what is wrong; what is independent stays."""

from __future__ import annotations

import pytest

from tests.builders import MLP, TraceBuilder, healthy_run
from tests.check.test_finding_builder import fold, shape, violation
from tests.learning import learn
from traincheck.check.engine import Engine
from traincheck.check.finding_builder import FindingBuilder
from traincheck.check.grouping.causes import RANK
from traincheck.check.grouping.invariant_effects import INVARIANT_EFFECTS
from traincheck.relations.registry import RELATIONS
from traincheck.rules.table import RULES
from traincheck.schema.events import Event
from traincheck.schema.findings import CheckInfo, Finding, Symptom, Topic, Violation

S = Symptom
SCALER = "torch.amp.GradScaler"
BCE = "torch.nn.functional.binary_cross_entropy_with_logits"
SOFTPLUS = "torch.nn.functional.softplus"
SCHEDULER = "torch.optim.lr_scheduler.LRScheduler.step"
FORWARD, LINEAR = "__main__.Net.forward", "torch.nn.modules.linear.Linear.forward"
NUMBER = "the smallest element of input is below 0"

PAIRS = {
    "the same loss": (
        violation("TC311", S.LOSS_INPUT, api=BCE),
        violation("bounded", S.WRONG_VALUE, api=BCE, expected=NUMBER, topic=Topic.MAGNITUDE),
    ),
    "the activation before a loss": (
        violation("TC312", S.LOSS_INPUT, api="torch.nn.functional.nll_loss"),
        violation(
            "count", S.MISSING_CALL, api="torch.nn.functional.log_softmax", topic=Topic.COUNT
        ),
    ),
    "a computation that gives NaN": (
        violation("TC701", S.NON_FINITE, api="torch.autograd.backward"),
        violation("count", S.MISSING_CALL, api=SOFTPLUS, topic=Topic.COUNT),
    ),
    "a scaler that is not there": (
        violation("TC804", S.PRECISION, module="Net"),
        violation("count", S.MISSING_CALL, api=f"{SCALER}.step", topic=Topic.COUNT),
    ),
    "methods of one class": (
        violation("a", S.MISSING_CALL, api=f"{SCALER}.scale"),
        violation("b", S.MISSING_CALL, api=f"{SCALER}.update", step=1),
    ),
    "a loss that is used twice": (
        violation("TC212", S.APPLIED_TWICE, api="torch.autograd.backward"),
        violation("count", S.EXTRA_CALL, api="torch.autograd.backward", topic=Topic.COUNT),
    ),
    "a scheduler": (
        violation("TC213", S.SCHEDULE, api=SCHEDULER, step=6),
        violation("count", S.EXTRA_CALL, api=SCHEDULER, step=6, topic=Topic.COUNT),
    ),
    "another copy of the model": (
        violation("TC101", S.NOT_IN_OPTIMIZER, "Net#2.fc.weight"),
        violation("contains", S.NO_GRADIENT, "Net.fc.weight"),
    ),
    "ranks": (
        violation("TC401", S.RANKS_DIFFER, "Net.fc.weight"),
        violation("contains", S.NOT_UPDATED, "Net.fc.weight", 7),
    ),
    "the same variable again": (
        violation("a", S.NOT_UPDATED, "Net.fc.weight", 1),
        violation("b", S.NOT_UPDATED, "Net.fc.weight", 9),
    ),
    "a warning about the same call": (
        violation("TC950", S.WARNED, api="clip-of-nothing"),
        violation("bounded", S.WRONG_VALUE, api="torch.nn.utils.clip_grad_norm_"),
    ),
    "the numbers of another computation": (
        violation("a", S.MISSING_CALL, api="torch.nn.functional.log_softmax"),
        violation(
            "b",
            S.WRONG_VALUE,
            api="torch.nn.functional.nll_loss",
            expected=NUMBER,
            topic=Topic.MAGNITUDE,
        ),
    ),
    "a model that is called more often, and what it calls": (
        violation("a", S.EXTRA_CALL, module="Net", api=FORWARD),
        violation("b", S.EXTRA_CALL, module="Net.fc", api=LINEAR),
    ),
    "a model that is called more often, and its loss": (
        violation("b", S.EXTRA_CALL, module="Net", api=FORWARD),
        violation("a", S.EXTRA_CALL, api="torch.nn.functional.cross_entropy"),
    ),
    "a model that is called more often, and its rows": (
        violation("a", S.EXTRA_CALL, module="Net", api=FORWARD),
        violation("b", S.WRONG_VALUE, module="Net", topic=Topic.ROWS),
    ),
    "initial values": (
        violation("TC708", S.INITIALIZATION, "Net.fc.weight"),
        violation("init", S.MISSING_CALL, api="torch.nn.init.xavier_uniform_", step=None),
    ),
}

INDEPENDENT = {
    "another model is called more often": (
        violation("a", S.EXTRA_CALL, module="Net", api=FORWARD),
        violation("b", S.EXTRA_CALL, module="Critic", api="__main__.Critic.forward"),
    ),
    "a part of a model that is called more often, and a loss": (
        violation("a", S.EXTRA_CALL, module="Net.fc", api=LINEAR),
        violation("b", S.EXTRA_CALL, api="torch.nn.functional.cross_entropy"),
    ),
    "a model that is called more often, and its optimizer": (
        violation("a", S.EXTRA_CALL, module="Net", api=FORWARD),
        violation("b", S.EXTRA_CALL, api="torch.optim.Optimizer.step"),
    ),
    "dropout and numbers": (
        violation("a", S.MISSING_CALL, api="torch.nn.functional.dropout"),
        violation(
            "b",
            S.WRONG_VALUE,
            api="torch.nn.functional.nll_loss",
            expected=NUMBER,
            topic=Topic.MAGNITUDE,
        ),
    ),
    "another loss": (
        violation("TC311", S.LOSS_INPUT, api=BCE),
        violation(
            "bounded",
            S.WRONG_VALUE,
            api="torch.nn.functional.mse_loss",
            expected=NUMBER,
            topic=Topic.MAGNITUDE,
        ),
    ),
    "dropout and a loss": (
        violation("TC312", S.LOSS_INPUT, api="torch.nn.functional.nll_loss"),
        violation("count", S.MISSING_CALL, api="torch.nn.functional.dropout", topic=Topic.COUNT),
    ),
    "dropout and NaN": (
        violation("TC701", S.NON_FINITE, api="torch.autograd.backward"),
        violation("count", S.MISSING_CALL, api="torch.nn.functional.dropout", topic=Topic.COUNT),
    ),
    "a computation that changed later": (
        violation("TC701", S.NON_FINITE, api="torch.autograd.backward"),
        violation("count", S.MISSING_CALL, api=SOFTPLUS, step=5, topic=Topic.COUNT),
    ),
    "functions are no class": (
        violation("a", S.MISSING_CALL, api="torch.nn.functional.relu"),
        violation("b", S.MISSING_CALL, api=SOFTPLUS),
    ),
    "a setting is no number that is computed": (
        violation("TC201", S.MISSING_ZERO_GRAD, api="zero_grad"),
        violation("constant", S.WRONG_VALUE, api="torch.optim.adam.Adam", expected=NUMBER),
    ),
    "a scaler and a scheduler": (
        violation("TC804", S.PRECISION, module="Net"),
        violation("count", S.MISSING_CALL, api=SCHEDULER, topic=Topic.COUNT),
    ),
    "another variable": (
        violation("TC401", S.RANKS_DIFFER, "Net.a"),
        violation("contains", S.NOT_UPDATED, "Net.b"),
    ),
    "another part of a copy": (
        violation("TC101", S.NOT_IN_OPTIMIZER, "Net#2.fc.weight"),
        violation("contains", S.NO_GRADIENT, "Net.head.weight"),
    ),
}


@pytest.mark.parametrize("name", sorted(PAIRS))
def test_a_difference_goes_with_what_is_wrong(name: str) -> None:
    cause, effect = PAIRS[name]
    for pair in (PAIRS[name], (effect, cause)):
        assert shape(fold(*pair)) == [(cause.check_id, (effect.check_id,))]


def test_a_model_goes_before_all_that_it_calls() -> None:
    inner = [violation(f"a{i}", S.EXTRA_CALL, module=f"Net.{i}", api=LINEAR) for i in range(2)]
    by_class = violation("b", S.EXTRA_CALL, api=LINEAR)
    loss = violation("c", S.EXTRA_CALL, api="torch.nn.functional.cross_entropy")
    model = violation("d", S.EXTRA_CALL, module="Net", api=FORWARD)
    assert shape(fold(*inner, by_class, loss, model)) == [("d", ("a0", "a1", "b", "c"))]


@pytest.mark.parametrize("name", sorted(INDEPENDENT))
def test_an_independent_fault_stays_a_finding(name: str) -> None:
    found = fold(*INDEPENDENT[name])
    assert {finding.check for finding in found} == {v.check_id for v in INDEPENDENT[name]}
    assert all(finding.also == () for finding in found)


def test_what_a_rule_finds_is_no_mere_difference() -> None:
    found = fold(
        violation("TC401", S.RANKS_DIFFER, "Net.a"),
        violation("TC102", S.NOT_UPDATED, "Net.a"),
    )
    assert {finding.check for finding in found} == {"TC401", "TC102"}


def test_nothing_that_is_folded_is_lost() -> None:
    found = fold(
        violation("TC101", S.NOT_IN_OPTIMIZER, "Net.a", 2),
        violation("update", S.NOT_UPDATED, "Net.a", 2),
        violation("update", S.NOT_UPDATED, "Net.a", 3),
        violation("state", S.STATE_UNCHANGED, "Net.a/exp_avg", 4),
    )
    (finding,) = found
    assert [(a.check, a.first_step, a.violations, a.subjects) for a in finding.also] == [
        ("update", 2, 2, ("Net.a",)),
        ("state", 4, 1, ("Net.a/exp_avg",)),
    ]
    assert {also.check for also in finding.also} == set(finding.explains)
    assert finding.violations == 1 + sum(also.violations for also in finding.also)


def test_what_the_reference_computes_is_told_with_the_cause() -> None:
    cause, effect = PAIRS["a computation that gives NaN"]
    (finding,) = fold(cause, effect)
    assert "this one does not call softplus" in finding.likely_cause
    extra = violation("more", S.EXTRA_CALL, api="torch.nn.functional.gelu")
    (finding,) = fold(cause, effect, extra)
    assert "this one calls gelu" in finding.likely_cause
    (finding,) = fold(*PAIRS["a scheduler"])
    assert "reference runs" not in finding.likely_cause


@pytest.mark.parametrize(("measured", "told"), [(0, "does not call softplus."), (2, "less often.")])
def test_calls_that_were_counted_are_told_as_fewer(measured: int, told: str) -> None:
    cause = violation("TC701", S.NON_FINITE, api="torch.autograd.backward")
    effect = violation("count", S.MISSING_CALL, api=SOFTPLUS, topic=Topic.COUNT, measured=measured)
    assert fold(cause, effect)[0].likely_cause.endswith(told)


def test_calls_in_another_order_are_not_said_to_be_missing() -> None:
    cause = violation("TC701", S.NON_FINITE, api="torch.autograd.backward")
    effect = violation("order", S.MISSING_CALL, api=SOFTPLUS, topic=Topic.ORDER)
    assert "reference runs" not in fold(cause, effect)[0].likely_cause


def test_calls_that_are_not_counted_in_evaluation_mode_are_not_said_to_be_missing() -> None:
    cause = violation("TC301", S.EVAL_MODE, api="Net.forward")
    effect = violation(
        "count", S.MISSING_CALL, api="torch.nn.functional.cross_entropy", topic=Topic.COUNT
    )
    (finding,) = fold(cause, effect)
    assert finding.check == "TC301"
    assert "reference runs" not in finding.likely_cause


def test_numbers_are_told_with_the_call_that_changes_them() -> None:
    cause, effect = PAIRS["the numbers of another computation"]
    (finding,) = fold(cause, effect)
    assert f"{NUMBER}; here it is seen." in finding.likely_cause
    (finding,) = fold(*PAIRS["the same loss"])
    assert NUMBER not in finding.likely_cause


def severities(*violations: tuple[Violation, str]) -> list[tuple[str, str]]:
    infos = {
        v.check_id: CheckInfo(
            check_id=v.check_id,
            kind="rule" if v.check_id.startswith("TC") else "invariant",
            code=v.check_id,
            severity=severity,
            title="x",
        )
        for v, severity in violations
    }
    book = FindingBuilder(infos)
    for v, _ in violations:
        book.add(v)
    return [(finding.check, finding.severity) for finding in book.findings()]


def test_a_finding_is_as_severe_as_what_it_explains() -> None:
    cause, effect = PAIRS["a scaler that is not there"]
    assert severities((cause, "warning"), (effect, "error")) == [("TC804", "error")]
    assert severities((cause, "error"), (effect, "warning")) == [("TC804", "error")]


def test_advice_does_not_speak_for_an_invariant() -> None:
    advice = violation("TC106", S.NO_GRADIENT, "Net.a", 0)
    learned = violation("contains", S.NO_GRADIENT, "Net.a", 1)
    assert severities((advice, "info"), (learned, "error")) == [("contains", "error")]
    assert severities((advice, "warning"), (learned, "error")) == [("TC106", "error")]


def test_causes_rank_before_what_they_may_explain() -> None:
    for cause, effects in INVARIANT_EFFECTS.items():
        assert all(RANK[cause] <= RANK[effect] for effect in effects), cause


def found_in(events: list[Event]) -> list[Finding]:
    """Findings of rules and of what a healthy run teaches."""
    engine = Engine(learn(healthy_run(20)).invariants, RULES, RELATIONS)
    for event in events:
        engine.observe(event)
    return [f for f in engine.finish().findings if f.severity != "info"]


def net() -> TraceBuilder:
    return TraceBuilder().process().seed().model("Net", MLP).optimizer().train()


STALE = {"Net.fc1.weight", "Net.fc1.bias"}


def test_two_faults_that_begin_together_are_two_findings() -> None:
    one = found_in(net().steps(3).steps(5, omit={"zero_grad"}).build())
    other = found_in(net().steps(3).steps(5, not_updated=STALE).build())
    both = found_in(net().steps(3).steps(5, omit={"zero_grad"}, not_updated=STALE).build())
    assert [len(one), len(other), len(both)] == [1, 1, 2]
    assert {f.title for f in both} == {one[0].title, other[0].title}
    assert {f.check for f in both} == {one[0].check, other[0].check}


def test_a_chain_of_effects_of_one_fault_is_one_finding() -> None:
    (finding,) = found_in(net().steps(3).steps(5, omit={"optimizer_step"}).build())
    assert len(finding.also) > 1
    (finding,) = found_in(net().steps(3).steps(5, no_gradient=STALE).build())
    assert set(finding.variables) == STALE
